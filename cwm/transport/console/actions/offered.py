"""Every action by its path below the console."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cwm.transport.console.actions.conversations import CONVERSATIONS
from cwm.transport.console.actions.engines import ENGINES
from cwm.transport.console.actions.keys import KEYS, NEW
from cwm.transport.console.actions.turns import TURNS
from cwm.transport.console.actions.two_steps import Action
from cwm.transport.console.actions.upstreams import UPSTREAMS
from cwm.transport.console.actions.windows import WINDOWS

_NOUNS: Final[Mapping[str, Mapping[str, Action]]] = {
    "/conversations/{session_id}": CONVERSATIONS,
    "/turns/{turn}": TURNS,
    "/windows/{window_name}": WINDOWS,
    "/engines/{engine}": ENGINES,
    "/upstreams/{upstream}": UPSTREAMS,
    "/keys": NEW,
    "/keys/{key_id}": KEYS,
}
ACTIONS: Final[Mapping[str, Action]] = {
    f"{path}/{name}": action for path, actions in _NOUNS.items() for name, action in actions.items()
}
