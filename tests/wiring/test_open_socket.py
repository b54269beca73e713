"""Whoever reaches the socket may do everything, so it opens on this machine alone unless somebody has said otherwise."""

from __future__ import annotations

from typing import Final

import pytest
from typer.testing import CliRunner

from cwm.cli.root import app
from cwm.settings import SettingsError, load
from cwm.wiring.access import refuse_open_socket

WAYS_ON: Final = {
    "CWM_API_KEYS": "true",
    "CWM_OAUTH_ISSUER": "https://issuer.example",
    "CWM_ALLOW_UNAUTHENTICATED": "true",
}
ANOTHER_ADDRESS: Final = ("0.0.0.0", "::", "192.0.2.7", "2001:db8::7", "gateway", "localhost.example")


@pytest.mark.parametrize("host", ANOTHER_ADDRESS)
def test_an_address_that_others_reach_is_refused_and_every_way_on_is_named(host: str) -> None:
    with pytest.raises(SettingsError) as refused:
        refuse_open_socket(load({"CWM_HOST": host}))

    assert [name for name in ("CWM_HOST", *WAYS_ON) if name not in str(refused.value)] == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_this_machine_needs_none_of_them(host: str) -> None:
    refuse_open_socket(load({"CWM_HOST": host}))


@pytest.mark.parametrize("way_on", WAYS_ON)
def test_each_way_that_is_named_leads_on(way_on: str) -> None:
    variables = {"CWM_HOST": "0.0.0.0", "CWM_PUBLIC_URL": "https://cwm.example", way_on: WAYS_ON[way_on]}
    refuse_open_socket(load(variables))


@pytest.mark.parametrize("way_on", ["CWM_API_KEYS", "CWM_ALLOW_UNAUTHENTICATED"])
def test_saying_no_is_not_a_way_on(way_on: str) -> None:
    with pytest.raises(SettingsError):
        refuse_open_socket(load({"CWM_HOST": "0.0.0.0", way_on: "false"}))


@pytest.mark.parametrize("command", ["serve", "up"])
def test_help_says_what_another_address_takes(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "400"})

    assert shown.exit_code == 0
    assert [name for name in WAYS_ON if name not in shown.stdout] == []
