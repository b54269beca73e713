"""Whether a preview is what the tool's output schema promises."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final

_ERRORS: Final = 50
_BACKTRACKS: Final = 100_000

ValuePath = tuple[str | int, ...]


class Validity:
    """A schema of an upstream's making: it is not followed out of the process, and its patterns can't hang it."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        from jsonschema_rs import FancyRegexOptions, Validator, validator_for

        patterns = FancyRegexOptions(backtrack_limit=_BACKTRACKS)
        self._validator: Validator | None = None
        # By a schema that can't be read, no client can validate either.
        with suppress(ValueError):
            self._validator = validator_for(dict(schema), offline=True, pattern_options=patterns)

    def errors(self, value: Any) -> list[ValuePath]:
        """Where ``value`` fails, at most 50 places; the empty place is the whole."""
        if self._validator is None or self._validator.is_valid(value):
            return []
        return [tuple(error.instance_path) for error in islice(self._validator.iter_errors(value), _ERRORS)]
