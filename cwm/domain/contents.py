"""Rules for stored contents, whatever the store."""

from __future__ import annotations

from cwm.domain.errors import StorageQuotaExceededError


def over_quota(used: int, size: int, quota_bytes: int) -> StorageQuotaExceededError:
    """CWM-4003 for a write of ``size`` bytes on top of ``used`` bytes."""
    return StorageQuotaExceededError(
        "The tenant's quota for shared context and stored results is used up: "
        "delete what is not needed, or wait until some of it expires.",
        used_bytes=used,
        asked_bytes=size,
        quota_bytes=quota_bytes,
    )
