"""Growing a conversation in token ids: the next prompt is an exact extension of the last.

Re-rendering a conversation as text does not give back the ids the model has seen. So only the new
messages are rendered, by the model's own template, behind a sentinel whose ids can be found again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cwm.domain.errors import EngineResponseError, SecurityError
from cwm.domain.prefix import TokenIds
from cwm.domain.session import OWN
from cwm.ports.engine import Engine

_SENTINELS: Final = ("\u241eCWM\u241e", "\u241fMWC\u241f")

TEMPLATE: Final = f"{OWN}template"

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Template:
    """What of the caller's first request decides how later messages are rendered."""

    has_system: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def as_metadata(self) -> dict[str, Any]:
        """What a session's metadata keeps of it."""
        return {TEMPLATE: {"has_system": self.has_system, "options": dict(self.options)}}


def template_of(messages: Messages, options: Mapping[str, Any]) -> Template:
    return Template(any(m.get("role") == "system" for m in messages), dict(options))


def template_from(metadata: Mapping[str, Any]) -> Template:
    """The template kept in a session's metadata; the default for a session that has none."""
    stored = metadata.get(TEMPLATE)
    if not stored:
        return Template()
    return Template(bool(stored.get("has_system")), dict(stored.get("options") or {}))


@dataclass(slots=True)
class Grow:
    engine: Engine
    _exact: set[str] = field(default_factory=set)

    async def refuse_forged(
        self, model: str, messages: Messages, options: Mapping[str, Any] | None = None
    ) -> None:
        """CWM-9002 when anything that the template will render would tokenise to its control tokens."""
        special = await self.engine.special_tokens(model)
        texts = list(_texts([*messages, options or {}]))
        forged = sorted({token for text in texts for token in special if token in text})
        if forged:
            raise SecurityError(
                "The text holds control tokens of the model's chat template; it would forge a turn.",
                tokens=forged,
            )

    async def first(self, model: str, messages: Messages, options: Mapping[str, Any]) -> TokenIds:
        """Ids of a conversation's opening, ready for the assistant's answer."""
        return await self.engine.render(model, messages, options=options)

    async def following(
        self, model: str, messages: Messages, template: Template, last_token: int
    ) -> TokenIds:
        """Ids to append for new messages after an assistant turn that ended in ``last_token``.

        CWM-5002 when the template renders them differently depending on what came before.
        """
        suffix = await self._suffix(model, messages, template, _SENTINELS[0])
        if model not in self._exact:
            if suffix != await self._suffix(model, messages, template, _SENTINELS[1]):
                raise EngineResponseError(
                    f"The chat template of '{model}' rewrites earlier turns: it cannot be continued exactly.",
                    model=model,
                )
            self._exact.add(model)
        # A turn that ended on the end-of-turn token has it already.
        return suffix[1:] if suffix[:1] == (last_token,) else suffix

    async def text(self, model: str, text: str, *, opening: bool) -> TokenIds:
        """Ids of raw text; the tokenizer's own opening tokens only at position 0."""
        return await self.engine.tokenize(model, text, add_special_tokens=opening)

    async def _suffix(self, model: str, messages: Messages, template: Template, sentinel: str) -> TokenIds:
        system = [{"role": "system", "content": "x"}] if template.has_system else []
        rendered = await self.engine.render(
            model,
            [
                *system,
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": sentinel},
                *messages,
            ],
            options=template.options,
        )
        mark = await self.engine.tokenize(model, sentinel, add_special_tokens=False)
        end = _last_end(rendered, mark)
        if end is None:
            raise EngineResponseError(
                f"The chat template of '{model}' changes an assistant's words: it cannot be continued exactly.",
                model=model,
            )
        return rendered[end:]


def _last_end(ids: TokenIds, mark: TokenIds) -> int | None:
    for start in range(len(ids) - len(mark), -1, -1):
        if ids[start : start + len(mark)] == mark:
            return start + len(mark)
    return None


def _texts(value: Any) -> Iterator[str]:
    """Every string anywhere in a message or an option, names of fields included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield str(name)
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
