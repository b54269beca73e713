"""Parses ``freeze:`` of ``cwm.yaml``: which sessions are frozen by themselves."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from pydantic import Field, ValidationError

from cwm.domain.autosave import AutosavePolicies, AutosavePolicy
from cwm.settings.fields import Count, Fields, SettingsError, Tenant, first_fault

FREEZE: Final = "freeze"
AUTO: Final = "freeze.auto"

_MINUTES_OF_A_YEAR: Final = 366 * 24 * 60


class PolicyFields(Fields):
    enabled: bool = Field(True, strict=True)
    every_tokens: Count | None = Field(None, ge=1, strict=True)
    every_minutes: float | None = Field(None, gt=0, le=_MINUTES_OF_A_YEAR, strict=True)
    keep: int = Field(3, ge=1, le=1_000, strict=True)

    def policy(self) -> AutosavePolicy | None:
        if not self.enabled or (self.every_tokens is None and self.every_minutes is None):
            return None
        every = None if self.every_minutes is None else timedelta(minutes=self.every_minutes)
        return AutosavePolicy(self.every_tokens, every, self.keep)


class AutoFields(PolicyFields):
    tenants: dict[Tenant, PolicyFields] = Field(default_factory=dict)

    def policies(self) -> AutosavePolicies:
        return AutosavePolicies(
            self.policy(),
            {tenant: self.model_copy(update=own.named()).policy() for tenant, own in self.tenants.items()},
        )


class FreezeFields(Fields):
    auto: AutoFields = AutoFields()


def read_autosave(freeze: Any, path: Path) -> AutosavePolicies:
    """The policies from the key of the file. Raises SettingsError."""
    try:
        return FreezeFields.model_validate({} if freeze is None else freeze).auto.policies()
    except ValidationError as invalid:
        raise SettingsError(first_fault(invalid, FREEZE, path, f"'{FREEZE}'")) from None
