"""What the page of a result says that was done: an address carries a code, never words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

NOTICES: Final[Mapping[str, str]] = {
    "frozen": "The window is there, and its blocks are proven to be stored.",
    "thawed": "The conversation is open, and goes on from the window.",
    "thawed-partly": "The conversation is open, and goes on from the window. Some of its KV was lost and was computed again.",
    "branched": "The conversation is open, and goes on from that turn.",
    "tagged": "The turn has the tag.",
    "untagged": "The tag is gone.",
    "reverted": "The conversation goes on here.",
    "unfrozen": "The conversation takes turns again.",
    "cloned": "The window has a second name: this one.",
    "renamed": "The window has this name now.",
    "extended": "The window stays longer.",
    "window-deleted": "The window is deleted.",
    "conversation-deleted": "The conversation is deleted.",
    "turns-deleted": "The branch is deleted.",
    "moved": "The conversation is on that engine.",
    "drained": "The engine is empty, and gets no new conversations.",
    "drained-partly": "The engine gets no new conversations. Some stayed on it: the audit log says how many; drain it again to go on.",
    "undrained": "The engine takes new conversations again.",
    "signed-out": "You are signed out of this gateway.",
    "key-revoked": "The key is revoked: every gateway refuses it.",
    "accepted": "The tools are accepted as they are now.",
}
