"""Parses ``keep:`` of ``cwm.yaml``: what is kept of what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, ValidationError

from cwm.domain.keep import KeepPolicies, KeepPolicy, TreeLimit
from cwm.settings.fields import Bytes, Count, Fields, Seconds, SettingsError, Tenant, first_fault

KEEP: Final = "keep"


class PolicyFields(Fields):
    messages: Literal["kept", "none"] = "kept"
    session_ttl_seconds: Seconds | None = Field(None, ge=0, strict=True)
    session_kept_seconds: Seconds | None = Field(None, ge=0, strict=True)
    found_session_ttl_seconds: Seconds | None = Field(None, ge=0, strict=True)
    found_session_kept_seconds: Seconds | None = Field(None, ge=0, strict=True)
    session_turns: Count | None = Field(None, ge=1, strict=True)
    session_tokens: Bytes | None = Field(None, ge=1, strict=True)

    def policy(self) -> KeepPolicy:
        return KeepPolicy(
            self.messages == "kept",
            self.session_ttl_seconds,
            self.session_kept_seconds,
            TreeLimit(self.session_turns, self.session_tokens),
            self.found_session_ttl_seconds,
            self.found_session_kept_seconds,
        )


class KeepFields(PolicyFields):
    tenants: dict[Tenant, PolicyFields] = Field(default_factory=dict)


def read_keep(keep: Any, path: Path) -> KeepPolicies:
    """The policies from the key of the file. A tenant's fields replace those of all. Raises SettingsError."""
    try:
        fields = KeepFields.model_validate({} if keep is None else keep)
    except ValidationError as invalid:
        raise SettingsError(first_fault(invalid, KEEP, path, f"'{KEEP}'")) from None
    return KeepPolicies(
        fields.policy(),
        {name: fields.model_copy(update=own.named()).policy() for name, own in fields.tenants.items()},
    )
