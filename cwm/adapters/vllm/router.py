"""What a router in front of several vLLM servers is told of a session, and what it says of its choice."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, TypeAlias

from cwm.ports.engine import SessionName
from cwm.ports.tracing import Span

RawHeaders: TypeAlias = Sequence[tuple[bytes, bytes]]

# Of vllm-router and llm-d, and of Dynamo.
_SESSION_NAMES: Final = (b"x-session-id", b"x-dynamo-session-id")
# Of llm-d: what an answer has is sent with the session's next request.
_TOKEN: Final = b"x-session-token"
# Of vllm-router, and of the Gateway API's inference extension.
_DECISIONS: Final = (b"x-vllm-router-decision", b"x-gateway-destination-endpoint-served")
_OWN: Final = frozenset({*_SESSION_NAMES, _TOKEN})
_MOST_TOKENS: Final = 10_000
_DECISION_CHARS: Final = 200


def decision_of(headers: RawHeaders) -> str | None:
    """What an answer says that the router chose; of a long text its beginning."""
    decisions = (value for name, value in headers if value and name.lower() in _DECISIONS)
    decision = next(decisions, None)
    return None if decision is None else decision.decode("latin-1")[:_DECISION_CHARS]


class Router:
    """Remembers the tokens of the sessions that were used last, for as long as the gateway runs."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[SessionName, bytes] = OrderedDict()

    def onward(self, headers: RawHeaders, session: SessionName | None) -> list[tuple[bytes, bytes]]:
        """The headers of a request of ``session``, which no client chooses."""
        onward_headers = [(name, value) for name, value in headers if name.lower() not in _OWN]
        if session is None:
            return onward_headers
        onward_headers += [(name, session[1].encode()) for name in _SESSION_NAMES]
        if (token := self._tokens.get(session)) is not None:
            onward_headers.append((_TOKEN, token))
        return onward_headers

    def answered(self, headers: RawHeaders, session: SessionName | None, span: Span) -> None:
        """Take the token and the decision out of an answer's headers."""
        if (decision := decision_of(headers)) is not None:
            span.note({"cwm.router.decision": decision})
        for name, value in headers:
            if name.lower() == _TOKEN and session is not None:
                self._tokens[session] = value
                self._tokens.move_to_end(session)
                if len(self._tokens) > _MOST_TOKENS:
                    self._tokens.popitem(last=False)
