"""Whom a stranger is counted as."""

from __future__ import annotations

import pytest

from cwm.domain.origin import Face, Origin


@pytest.mark.parametrize(
    ("address", "source"),
    [
        (None, None),
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("a:name", "a:name"),
    ],
)
def test_a_source_is_an_address_or_the_network_in_which_each_may_choose_their_own(
    address: str | None, source: str | None
) -> None:
    assert Origin(Face.HTTP, address).source == source
