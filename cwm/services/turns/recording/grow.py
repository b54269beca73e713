"""Extend a conversation in token ids, so that the next prompt is an exact extension of the last.

Rendering the whole conversation again does not give the ids that the model has seen. So only the new messages are
rendered, by the model's own template, after a sentinel whose ids can be located in the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cwm.domain.errors import EngineResponseError, SecurityError
from cwm.domain.prefix import TokenIds
from cwm.domain.principal import Principal
from cwm.domain.session import OWN
from cwm.ports.engine import Engine

_SENTINELS: Final = ("\u241eCWM\u241e", "\u241fMWC\u241f")

TEMPLATE: Final = f"{OWN}template"

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Template:
    """The parts of a session's first request that decide how later messages are rendered."""

    has_system: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def as_metadata(self) -> dict[str, Any]:
        """The template as stored in a session's metadata."""
        return {TEMPLATE: {"has_system": self.has_system, "options": dict(self.options)}}


def template_of(messages: Messages, options: Mapping[str, Any]) -> Template:
    return Template(any(m.get("role") == "system" for m in messages), dict(options))


def template_from(metadata: Mapping[str, Any]) -> Template:
    """The template stored in a session's metadata; the default if there is none."""
    stored = metadata.get(TEMPLATE)
    if not stored:
        return Template()
    return Template(bool(stored.get("has_system")), dict(stored.get("options") or {}))


@dataclass(slots=True)
class Grow:
    engine: Engine
    _exact: set[str] = field(default_factory=set)
    _asker: Principal | None = None

    def on(self, engine: str, asker: Principal | None = None) -> Grow:
        """The same through the engine of this name, with messages that ``asker`` sent."""
        return Grow(self.engine.on(engine), self._exact, asker)

    async def refuse_forged(
        self, model: str, messages: Messages, options: Mapping[str, Any] | None = None
    ) -> None:
        """CWM-9002 if a text to be rendered contains control tokens of the template."""
        special = await self.engine.special_tokens(model)
        texts = list(_texts([*messages, options or {}]))
        forged = sorted({token for text in texts for token in special if token in text})
        if forged:
            raise SecurityError(
                "The text holds control tokens of the model's chat template; it would forge a turn.",
                tokens=forged,
            )

    async def first(self, model: str, messages: Messages, options: Mapping[str, Any]) -> TokenIds:
        """Token ids of the first messages, up to where the assistant's answer begins."""
        return await self.engine.render(model, messages, options=options, asker=self._asker)

    async def following(
        self, model: str, messages: Messages, template: Template, last_token: int
    ) -> TokenIds:
        """Token ids to append for new messages, after an assistant turn that ended in ``last_token``.

        CWM-5002 if the template renders them differently depending on earlier turns.
        """
        suffix = await self._suffix(model, messages, template, _SENTINELS[0])
        if model not in self._exact:
            if suffix != await self._suffix(model, messages, template, _SENTINELS[1]):
                raise EngineResponseError(
                    f"The chat template of '{model}' rewrites earlier turns: it cannot be continued exactly.",
                    model=model,
                )
            self._exact.add(model)
        # If the turn ended with the end-of-turn token, the context has it already.
        return suffix[1:] if suffix[:1] == (last_token,) else suffix

    async def text(self, model: str, text: str, *, opening: bool) -> TokenIds:
        """Token ids of raw text. The tokenizer's opening tokens are added only at position 0."""
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
            asker=self._asker,
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
    """Every string in a message or option, field names included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield str(name)
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
