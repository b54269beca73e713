"""Figures by tenant, bounded in number."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

_MOST_TENANTS: Final = 4096

T = TypeVar("T")


class PerTenant(Generic[T]):
    """One value for each tenant. Beyond 4096 tenants the one used longest ago begins anew."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: OrderedDict[str, T] = OrderedDict()

    def of(self, tenant: str) -> T:
        value = self._values.get(tenant)
        if value is None:
            value = self._values[tenant] = self._make()
            if len(self._values) > _MOST_TENANTS:
                self._values.popitem(last=False)
        self._values.move_to_end(tenant)
        return value
