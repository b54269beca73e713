"""The preview of one JSON value: it fits its budget and is valid by its schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from cwm.domain.json_text import compact_json
from cwm.domain.tool_policy import PreviewKind, ToolPolicy
from cwm.ports.token_counter import TokenCounter
from cwm.services.results.preview.detail import LEVELS, PROJECTING, Detail
from cwm.services.results.preview.fitting import Fitted, JsonWithin, fit
from cwm.services.results.preview.masks import Mask
from cwm.services.results.preview.omitted import Omitted
from cwm.services.results.preview.reduction import Reduction
from cwm.services.results.preview.shapes import Shape
from cwm.services.results.preview.validity import Validity

_ROUNDS: Final = 16
_WANTED: Final = {
    PreviewKind.AUTO: 10,
    PreviewKind.PROJECT: 20,
    PreviewKind.EXTRACT: 3,
    PreviewKind.PAGE: 1,
    PreviewKind.HEAD: 1,
    PreviewKind.TAIL: 1,
}
"""How many items of a list are worth more than the details of each."""

Schema = Mapping[str, Any]


def fit_json(
    value: Any,
    schema: Schema | None,
    policy: ToolPolicy,
    budget: int,
    counter: TokenCounter,
    render: Callable[[Any], str] = compact_json,
) -> Fitted:
    """As much of ``value`` as ``budget`` allows, measured in the form that ``render`` writes.

    The result is valid by ``schema`` if ``value`` is. If the value has none of a policy's fields, the fields are ignored.
    """
    shape = Shape(schema, [schema]) if schema is not None else None

    def attempt(reduction: Reduction, levels: Sequence[Detail]) -> Fitted:
        within = JsonWithin(reduction, _WANTED[policy.preview], levels, render)
        return fit(within, budget, counter)

    if policy.fields:
        mask = Mask.of(policy.fields)
        reduction = Reduction(value, shape, mask, policy.preview, policy.keywords)
        preview = _valid(partial(attempt, reduction, LEVELS), reduction, schema, budget, counter)
        if reduction.matched:
            return preview
    levels = LEVELS[PROJECTING:] if policy.preview is PreviewKind.PROJECT else LEVELS
    reduction = Reduction(value, shape, None, policy.preview, policy.keywords)
    return _valid(partial(attempt, reduction, levels), reduction, schema, budget, counter)


def _valid(
    attempt: Callable[[], Fitted],
    reduction: Reduction,
    schema: Schema | None,
    budget: int,
    counter: TokenCounter,
) -> Fitted:
    """Restore what the schema turns out to require, step by step, in the end the whole value."""
    first = preview = attempt()
    if schema is None:
        return first
    validity = Validity(schema)
    for _ in range(_ROUNDS):
        errors = validity.errors(preview.value)
        if not errors:
            return preview
        reduction.pin(errors)
        if reduction.pinned_whole:
            break
        preview = attempt()
    if validity.errors(reduction.value):
        # The tool's own result is not valid, so the preview need not be.
        return first
    text = compact_json(reduction.value)
    tokens = counter.count(text)
    return Fitted(reduction.value, text, tokens, Omitted(), fits=tokens <= budget)
