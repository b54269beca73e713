"""Keys of the ASGI scope under which middleware stores facts about a request."""

from __future__ import annotations

from typing import Final

PRINCIPAL: Final = "cwm.principal"
"""The authenticated caller: a ``Principal``."""

CREDENTIAL: Final = "cwm.credential"
"""By what the caller was authenticated: a ``Credential``; None or absent where nobody is."""

MOST_BODY_VALUES: Final = "cwm.most_body_values"
"""How many values the JSON of the request's body may have."""

HELD: Final = "cwm.held"
"""The ``Hold`` of a message that took its place before it was read; absent of one that takes it when its method is known."""

AGENT_SESSION: Final = "cwm.agent_session"
"""The key of the agent session; absent when it is unknown, as for a client of 2026-07-28."""

STRANGER: Final = "cwm.stranger"
"""Present on a request that is served without authentication, with less information in its response."""

SIGN_IN: Final = "cwm.console.sign_in"
"""The text id of the sign-in to the console; absent where nobody signed in, as without authentication."""

LOOK_ONLY: Final = "cwm.console.look_only"
"""Present on requests of a sign-in to the console that only looks."""

CHOOSES: Final = "cwm.console.chooses"
"""Present on requests of a sign-in to the console that may look at every tenant."""

FORMS: Final = "cwm.console.forms"
"""What makes and checks the tokens of the console's forms: ``FormTokens``; there below ``/console``."""
