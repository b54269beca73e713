"""Parses ``results:`` and ``tools:`` of ``cwm.yaml`` into budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from cwm.domain.budgets import Budgets, References
from cwm.domain.field_paths import parse_path
from cwm.domain.limits import Rate, ToolRates, parse_rates
from cwm.domain.tool_policy import CachePolicy, PreviewKind, SharingScope, ToolPolicies, ToolPolicy
from cwm.settings.fields import Bytes, Fields, Seconds, SettingsError, first_fault

RESULTS: Final = "results"
TOOLS: Final = "tools"

_UNLIMITED: Final = "unlimited"
_LEAST_PREVIEW: Final = 500
_MOST_TOKENS: Final = 10**9
_NO_PREVIEW_IN_BUDGET: Final = "'preview_tokens' is more than 'max_tokens'"


def _tokens(value: Any, or_else: str = "") -> int:
    """A token count. Booleans are refused, although Python counts them as numbers."""
    if type(value) is not int or value < _LEAST_PREVIEW:
        raise ValueError(f"must be a whole number of at least {_LEAST_PREVIEW} tokens{or_else}")
    if value > _MOST_TOKENS:
        raise ValueError(f"must be at most {_MOST_TOKENS} tokens")
    return value


def _tokens_or_any(value: Any) -> int | None:
    """A token count, or None for ``unlimited``."""
    return None if value == _UNLIMITED else _tokens(value, f", or '{_UNLIMITED}'")


def _rates(value: Any) -> tuple[Rate, ...]:
    if not isinstance(value, str):
        raise ValueError(  # noqa: TRY004 - pydantic takes no other
            "must be rates such as '60/minute, 1000/hour', or 'none'"
        )
    return parse_rates(value)


def _path(value: str) -> str:
    parse_path(value)
    return value


Tokens = Annotated[int, BeforeValidator(_tokens)]
TokensOrAny = Annotated[int | None, BeforeValidator(_tokens_or_any)]
Rates = Annotated[tuple[Rate, ...] | None, BeforeValidator(_rates)]
Lifetime = Annotated[Seconds, Field(gt=0)]
Word = Annotated[str, StringConstraints(min_length=1, max_length=256)]
FieldPath = Annotated[Word, AfterValidator(_path)]
Words = Annotated[list[Word], Field(max_length=64)]


class ReferenceFields(Fields):
    enabled: bool = True
    most: int = Field(16, ge=1, le=256)
    most_bytes: Bytes = Field(16 * 2**20, ge=1)


class CacheFields(Fields):
    ttl_seconds: Lifetime
    key: Words = Field(default_factory=list)
    scope: SharingScope = SharingScope.TENANT


class RateFields(Fields):
    """A tool's rate limits, which replace the general ones."""

    session: Rates = None
    principal: Rates = None
    tenant: Rates = None


class BudgetFields(Fields):
    """Fields allowed both under ``results``, for all tools, and under ``tools``, for some."""

    max_tokens: TokensOrAny = 10_000
    preview_tokens: Tokens = 2_000
    ttl_seconds: Lifetime = 3_600.0
    shared: bool = False

    @model_validator(mode="after")
    def _preview_in_budget(self) -> Self:
        both = {"max_tokens", "preview_tokens"} <= self.model_fields_set
        if both and self.max_tokens is not None and self.preview_tokens > self.max_tokens:
            raise ValueError(_NO_PREVIEW_IN_BUDGET)
        return self

    def _own_values(self) -> dict[str, Any]:
        """The fields that were set, by the policy's own names."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        if "ttl_seconds" in values:
            values["result_ttl_seconds"] = values.pop("ttl_seconds")
        return values


class ResultsFields(BudgetFields):
    enabled: bool = True
    window_tokens: TokensOrAny = 200_000
    window_share: float = Field(0.25, gt=0, le=1)
    references: ReferenceFields = ReferenceFields()

    def default_policy(self) -> ToolPolicy:
        own = {"enabled", "window_tokens", "window_share", "references"}
        return _fitted(ToolPolicy(**{k: v for k, v in self._own_values().items() if k not in own}))

    def budgets(self, by_name: Mapping[str, ToolPolicy]) -> Budgets:
        return Budgets(
            policies=ToolPolicies(self.default_policy(), by_name),
            enabled=self.enabled,
            references=References(**self.references.model_dump()),
            window_tokens=self.window_tokens,
            window_share=self.window_share,
        )


class ToolFields(BudgetFields):
    preview: PreviewKind = PreviewKind.AUTO
    fields: Annotated[list[FieldPath], Field(max_length=64)] = Field(default_factory=list)
    keywords: Words = Field(default_factory=list)
    references: bool = False
    cache: CacheFields | None = None
    rate_limits: RateFields = RateFields()

    def policy(self, default: ToolPolicy) -> ToolPolicy:
        """``default`` with the fields that were set."""
        values = {**self._own_values()}
        for name in ("fields", "keywords"):
            if name in values:
                values[name] = tuple(values[name])
        if self.cache is not None:
            values["cache"] = CachePolicy(self.cache.ttl_seconds, tuple(self.cache.key), self.cache.scope)
        values.pop("rate_limits", None)
        rates = self.rate_limits
        values["rates"] = ToolRates(rates.session, rates.principal, rates.tenant)
        return _fitted(replace(default, **values))


def read_budgets(results: Any, tools: Any, path: Path) -> Budgets:
    """The budgets from the two keys of the file. Raises SettingsError."""
    try:
        defaults = ResultsFields.model_validate({} if results is None else results)
    except ValidationError as invalid:
        raise SettingsError(first_fault(invalid, RESULTS, path, f"'{RESULTS}'")) from None
    if tools is not None and not isinstance(tools, dict):
        raise SettingsError(f"'{TOOLS}' in {path} must contain policies by tool name.")
    default, by_name = defaults.default_policy(), dict[str, ToolPolicy]()
    for name, fields in (tools or {}).items():
        if not isinstance(name, str) or not 0 < len(name) <= 128:
            raise SettingsError(
                f"{TOOLS}.{name} in {path}: must be the name of a tool, or a pattern such as 'files_*'."
            )
        try:
            tool_fields = ToolFields.model_validate({} if fields is None else fields)
        except ValidationError as invalid:
            raise SettingsError(first_fault(invalid, f"{TOOLS}.{name}", path, "a tool's policy")) from None
        by_name[name] = tool_fields.policy(default)
    return defaults.budgets(by_name)


def _fitted(policy: ToolPolicy) -> ToolPolicy:
    """Limits a tool's preview to its ``max_tokens``."""
    if policy.max_tokens is None or policy.preview_tokens <= policy.max_tokens:
        return policy
    return replace(policy, preview_tokens=policy.max_tokens)
