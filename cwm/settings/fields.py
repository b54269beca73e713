"""What fields of settings have in common: the most that a number may be, and how a fault is told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

_OWN_WORDS: Final = {
    "missing": "is required",
    "string_type": "must be text; put it in quotes",
    "list_type": "must be a list",
    "dict_type": "must hold fields by name",
    "model_type": "must hold fields by name",
}
_NO_WORDS: Final[Mapping[str, str]] = {}

# A hundred years, before which and after which there are dates; sizes that no machine has, and that 64 bits hold.
Seconds = Annotated[float, Field(le=100 * 365 * 86_400)]
Days = Annotated[float, Field(le=100 * 365)]
Megabytes = Annotated[float, Field(le=1e9)]
Gigabytes = Annotated[float, Field(le=1e9)]
Bytes = Annotated[int, Field(le=10**15)]
Count = Annotated[int, Field(le=2**31 - 1)]


class Fields(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, given: Any) -> Any:
        """A key with nothing after it is as good as none."""
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}


def first_fault(
    invalid: ValidationError, place: str, path: Path, owner: str, foreign: Mapping[str, str] = _NO_WORDS
) -> str:
    """Where below ``place`` of the file the first fault is, and what is wrong; the value is not repeated.

    ``owner`` is what has the fields. ``foreign`` says more of fields that only other programs know.
    """
    first = invalid.errors(include_url=False, include_input=False, include_context=False)[0]
    inside = [str(part) for part in first["loc"] if part != "[key]"]
    return f"{'.'.join([place, *inside])} in {path}: {_wrong(first, owner, foreign)}."


def in_words(fault: ErrorDetails) -> str:
    """What is wrong, as the end of a sentence that begins with the place."""
    if fault["type"] == "value_error":
        return fault["msg"].removeprefix("Value error, ")
    return _OWN_WORDS.get(fault["type"], fault["msg"][:1].lower() + fault["msg"][1:])


def _wrong(fault: ErrorDetails, owner: str, foreign: Mapping[str, str]) -> str:
    if fault["type"] == "extra_forbidden":
        return foreign.get(str(fault["loc"][-1]), f"is no field of {owner}")
    return in_words(fault)
