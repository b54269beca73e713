"""What holds for stored contents, wherever they are stored."""

from __future__ import annotations

from cwm.domain.errors import StorageQuotaExceededError


def over_quota(used: int, size: int, quota_bytes: int) -> StorageQuotaExceededError:
    """CWM-4003 for ``size`` bytes more than the ``used`` ones."""
    return StorageQuotaExceededError(
        "The tenant's shared context and stored results take as much as they may: "
        "delete what is not needed, or wait until some of it ends.",
        used_bytes=used,
        asked_bytes=size,
        quota_bytes=quota_bytes,
    )
