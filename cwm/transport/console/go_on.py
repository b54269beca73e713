"""How a conversation is gone on with in each client: what makes its session be at a context, then what the client is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Step:
    """``command`` is empty where the client has none."""

    words: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class Way:
    """``is_own``: the conversation is this client's."""

    client: str
    steps: Sequence[Step]
    is_own: bool = False


# By the beginning of a client's User-Agent. These continue the newest conversation of the folder that they run in.
_CLIENTS: Final = (
    ("Claude Code", ("claude-cli/",), "claude --continue"),
    ("Codex", ("codex_", "codex-"), "codex resume --last"),
    ("opencode", ("opencode/",), "opencode --continue"),
    ("Qwen Code", ("qwencode/", "qwen"), ""),
    ("Continue", ("continue/",), ""),
)
_THERE: Final = "Then, in the folder where the conversation was held:"
_BY_HAND: Final = (
    "Then open the conversation in the client's own list and go on. Its session must be this one."
)


def ways(client: str, first: Step | None, source: str, model: str) -> list[Way]:
    """One for each client, the conversation's own first. ``first`` comes before the client's own; ``source`` is a value of CWM-Continue."""
    before = [] if first is None else [first]
    agent = client.lower()
    listed = [
        Way(
            name,
            [*before, Step(_THERE, command) if command else Step(_BY_HAND)],
            is_own=bool(agent) and agent.startswith(beginnings),
        )
        for name, beginnings, command in _CLIENTS
    ]
    header = f'{{"CWM-Continue": "{source}"}}'
    ask = f'model="{model}", messages=[{{"role": "user", "content": "…"}}]'
    listed += [
        Way("OpenAI SDK", [Step("Only what is new:", f"client.chat.completions.create({ask}, extra_headers={header})")]),
        Way("Anthropic SDK", [Step("Only what is new:", f"client.messages.create({ask}, max_tokens=1024, extra_headers={header})")]),
    ]  # fmt: skip
    return sorted(listed, key=lambda way: not way.is_own)
