"""Parses ``capture:`` of ``cwm.yaml``: which requests that name no session are recorded in one."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, ValidationError

from cwm.domain.conversation import Capture, CapturePolicies
from cwm.settings.fields import Fields, SettingsError, first_fault

CAPTURE: Final = "capture"
_MOST_HEADERS: Final = 16
_MOST_IDS: Final = 64

_Tenant = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
_Header = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$"), AfterValidator(str.lower)]
_FixedId = Annotated[str, StringConstraints(min_length=1, max_length=256)]
# To YAML, off is false.
_Mode = Annotated[Capture, BeforeValidator(lambda value: "off" if value is False else value)]


class TenantFields(Fields):
    mode: _Mode


class StoreFalse(StrEnum):
    RECORDED = "recorded"
    OFF = "off"


# To YAML, off is false.
_StoreFalse = Annotated[StoreFalse, BeforeValidator(lambda value: "off" if value is False else value)]


class CaptureFields(Fields):
    mode: _Mode | None = None
    store_false: _StoreFalse = StoreFalse.RECORDED
    headers: list[_Header] = Field(default_factory=list, max_length=_MOST_HEADERS)
    fixed_ids: list[_FixedId] = Field(default_factory=list, max_length=_MOST_IDS)
    by_cache_key: bool = Field(False, strict=True)
    tenants: dict[_Tenant, TenantFields] = Field(default_factory=dict)


def read_capture(capture: Any, path: Path) -> CapturePolicies:
    """The policies from the key of the file. Raises SettingsError."""
    try:
        fields = CaptureFields.model_validate({} if capture is None else capture)
    except ValidationError as invalid:
        raise SettingsError(first_fault(invalid, CAPTURE, path, f"'{CAPTURE}'")) from None
    by_tenant = {tenant: own.mode for tenant, own in fields.tenants.items()}
    return CapturePolicies(
        fields.mode,
        by_tenant,
        tuple(fields.headers),
        unstored=Capture.OFF if fields.store_false is StoreFalse.OFF else Capture.ALL,
        fixed_ids=tuple(fields.fixed_ids),
        by_cache_key=fields.by_cache_key,
    )
