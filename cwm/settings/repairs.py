"""Parses ``repairs:`` of ``cwm.yaml``: what is changed in requests of which clients, so that the cache holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, StringConstraints, ValidationError

from cwm.domain.habits import Repair, RepairPolicies
from cwm.settings.fields import Fields, SettingsError, Tenant, first_fault

REPAIRS: Final = "repairs"
_MOST_CLIENTS: Final = 64

_Pattern = Annotated[str, StringConstraints(min_length=1, max_length=256)]
_Clients = Annotated[dict[_Pattern, tuple[Repair, ...]], Field(max_length=_MOST_CLIENTS)]


class TenantFields(Fields):
    clients: _Clients = Field(default_factory=dict)


class RepairFields(TenantFields):
    tenants: dict[Tenant, TenantFields] = Field(default_factory=dict)


def read_repairs(repairs: Any, path: Path) -> RepairPolicies:
    """The policies from the key of the file. A tenant's clients replace those of all. Raises SettingsError."""
    try:
        fields = RepairFields.model_validate({} if repairs is None else repairs)
    except ValidationError as invalid:
        raise SettingsError(first_fault(invalid, REPAIRS, path, f"'{REPAIRS}'")) from None
    return RepairPolicies(fields.clients, {name: own.clients for name, own in fields.tenants.items()})
