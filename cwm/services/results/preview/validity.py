"""Validates a preview by the tool's output schema."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final

_ERRORS: Final = 50
_BACKTRACKS: Final = 100_000

ValuePath = tuple[str | int, ...]


class Validity:
    """Validates by an upstream's schema: external references are not followed, and patterns have a backtracking limit."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        from jsonschema_rs import FancyRegexOptions, Validator, validator_for

        patterns = FancyRegexOptions(backtrack_limit=_BACKTRACKS)
        self._validator: Validator | None = None
        # No client can validate by a malformed schema either.
        with suppress(ValueError):
            self._validator = validator_for(dict(schema), offline=True, pattern_options=patterns)

    def errors(self, value: Any) -> list[ValuePath]:
        """The places where ``value`` is invalid, at most 50; the empty place is the whole value."""
        if self._validator is None or self._validator.is_valid(value):
            return []
        return [tuple(error.instance_path) for error in islice(self._validator.iter_errors(value), _ERRORS)]
