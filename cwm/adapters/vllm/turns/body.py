"""A request body: parsed once, and sent to vLLM as it came, with our fields behind the last one."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, NoReturn, Self

from cwm.adapters.vllm import wire
from cwm.adapters.vllm.media import MediaRule
from cwm.adapters.vllm.turns.prompt_ids import RecentPrompts
from cwm.adapters.vllm.turns.repairs import repaired
from cwm.domain.errors import InvalidParameterError
from cwm.domain.habits import Repair
from cwm.domain.prefix import TokenIds
from cwm.domain.response import Item, ResponseAsk
from cwm.domain.showable import loaded
from cwm.domain.thinking import FIELDS as THOUGHTS
from cwm.domain.thinking import ThinkingWish, wish_of
from cwm.ports.turn_wire import Resume, TurnAnswer

_NO_HEADERS: Final[Mapping[str, str]] = {}
_HALVES: Final = "half_characters"
_OPTIONS: Final = "chat_template_kwargs"
_EMPTY: Final[tuple[Any, ...]] = (None, "", [], {})


@dataclass(frozen=True)
class RequestBody:
    """What requests of all protocols have in common.

    ``served`` is the model's name in the engine, where the client uses another; ``capped`` how many tokens an answer may
    have, where the client asked for more than the model takes. ``repairs`` are those that changed it. ``dropped`` are the fields
    that nobody knows; ``wish`` is what they say of thoughts, until the model is known.
    """

    fields: dict[str, Any]
    raw: bytes
    max_answer_bytes: int
    media: MediaRule = field(default_factory=MediaRule)
    prompts: RecentPrompts | None = None
    served: str | None = None
    capped: int | None = None
    repairs: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    wish: ThinkingWish | None = None

    ANSWER_LIMITS: ClassVar[tuple[str, ...]] = ()
    """The fields that say how many tokens the answer may have."""

    @property
    def model(self) -> str | None:
        model = self.fields.get("model")
        return model if isinstance(model, str) else None

    @property
    def is_chat(self) -> bool:
        """Whether a template renders it."""
        return True

    @property
    def streamed(self) -> bool:
        return bool(self.fields.get("stream"))

    def repaired(self, repairs: Collection[Repair]) -> Self:
        changes = repaired(self.fields, repairs)
        if not changes:
            return self
        new = {name: new for each in changes.values() for name, new in each.items()}
        return replace(self._with({**self.fields, **new}), repairs=(*self.repairs, *changes))

    def mended(self) -> Self:
        """The same request, of whose fields some are other texts than those of its bytes."""
        return replace(self._with(self.fields), repairs=(*self.repairs, _HALVES))

    def without(self, names: Collection[str]) -> Self:
        """The same request without these fields, which it says that it dropped unless they are empty."""
        if not names:
            return self
        foreign = {name: self.fields[name] for name in names}
        fields = {name: value for name, value in self.fields.items() if name not in foreign}
        dropped = tuple(sorted(name for name, value in foreign.items() if value not in _EMPTY))
        wish = wish_of(foreign) if self.is_chat else None
        return replace(self._with(fields), dropped=dropped, wish=wish)

    def addressed_to(self, model: str, max_model_len: int, switches: Collection[str] = ()) -> Self:
        """VLLM refuses to generate more than ``max_model_len`` tokens; it takes care of the prompt's length itself."""
        served = None if self.model in {None, model} else model
        over = [name for name in self.ANSWER_LIMITS if _is_over(self.fields.get(name), max_model_len)]
        request = replace(self, served=served, capped=max_model_len if over else None)
        options = {} if self.wish is None else self.wish.options(switches)
        return request._with_options(options) if options else request  # noqa: SLF001 - another of its kind

    def _with_options(self, options: Mapping[str, Any]) -> Self:
        """The same request with these variables for its template, behind the client's own."""
        own = self.fields.get(_OPTIONS)
        fields = {**self.fields, _OPTIONS: {**options, **(own if isinstance(own, dict) else {})}}
        dropped = tuple(name for name in self.dropped if name not in THOUGHTS)
        return replace(self._with(fields), dropped=dropped, wish=None)

    def _with(self, fields: dict[str, Any]) -> Self:
        """CWM-1003 for fields that are nested too deeply."""
        try:
            raw = json.dumps(fields, separators=(",", ":")).encode()
        except RecursionError as error:
            raise InvalidParameterError("The request is nested too deeply.", field="body") from error
        return replace(self, fields=fields, raw=raw)

    @property
    def resumable(self) -> bool:
        return False

    def resumed(self, answer: TurnAnswer, body: bytes) -> Resume | None:  # noqa: ARG002 - others can
        return None

    @property
    def response(self) -> ResponseAsk | None:
        return None

    def after(self, items: Sequence[Item], items_by_id: Mapping[str, Item]) -> Self:  # noqa: ARG002 - only a response goes on from another
        return self

    def response_of(self, answer: TurnAnswer) -> Mapping[str, Any] | None:  # noqa: ARG002 - only of a response
        return None

    def engine_headers(self, *, recorded: bool) -> Mapping[str, str]:  # noqa: ARG002 - others need it
        return _NO_HEADERS

    def _sent(self, cache_salt: str, weights: str, prompt: TokenIds | None, **ours: Any) -> bytes:
        """The client's bytes with our fields after the last one.

        A JSON parser keeps the last of equal names, so ours override the client's.
        """
        ours = {"cache_salt": cache_salt, **ours}
        if weights or prompt is not None:
            ours["kv_transfer_params"] = wire.transfer_params(weights, prompt)
        if self.served is not None:
            ours["model"] = self.served
        if self.capped is not None:
            ours |= {
                name: self.capped
                for name in self.ANSWER_LIMITS
                if _is_over(self.fields.get(name), self.capped)
            }
        return self._spliced(ours)

    def _spliced(self, ours: dict[str, Any]) -> bytes:
        """The client's bytes with ``ours`` after the last field."""
        if json.detect_encoding(self.raw) not in {"utf-8", "utf-8-sig"}:
            return json.dumps({**self.fields, **ours}).encode()
        beginning = self.raw.rstrip(b" \t\r\n")[:-1]
        comma = b"," if self.fields else b""
        return beginning + comma + json.dumps(ours, separators=(",", ":")).encode()[1:]


def json_object(body: bytes) -> tuple[dict[str, Any], bool]:
    """The fields of a request, and whether halves of characters were replaced in them. CWM-1003 if it is no JSON object, or one that could never be shown."""
    try:
        fields, has_halves = loaded(body, _refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidParameterError(
            f"The request body is not valid JSON: {_reason(error)}.", field="body"
        ) from error
    if not isinstance(fields, dict):
        raise InvalidParameterError("The request body must be a JSON object.", field="body")
    return fields, has_halves


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; none if it is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def is_ids(prompt: list[Any]) -> bool:
    """Whether a prompt consists of token ids."""
    return bool(prompt) and isinstance(prompt[0], int)


def strings(value: Any) -> Iterator[str]:
    """Every string in a prompt or in messages' ``content``, ``text`` and ``reasoning``."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in () if is_ids(value) else value:
            yield from strings(item)
    elif isinstance(value, dict):
        for name in ("content", "text", "reasoning"):
            if (inner := value.get(name)) is not None:
                yield from strings(inner)


def _is_over(value: Any, limit: int) -> bool:
    return isinstance(value, int) and value > limit


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, _ConstantError):
        return f"{error} is no value of JSON"
    return "it is not Unicode text" if isinstance(error, UnicodeError) else "a number has too many digits"


class _ConstantError(ValueError):
    """NaN, Infinity or -Infinity, which Python's parser takes."""


def _refuse(constant: str) -> NoReturn:
    raise _ConstantError(constant)
