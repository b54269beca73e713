"""Hosts, origins and link-local addresses as settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from cwm.domain.web_origin import is_link_local, origin_of
from cwm.settings import SettingsError, load


def test_names_are_given_with_commas_or_as_a_list(tmp_path: Path) -> None:
    config = tmp_path / "cwm.yaml"
    config.write_text(
        "security: {allowed_hosts: [A.example, '*.b.example'], allowed_origins: https://a.example}"
    )
    assert load({}, config).security.allowed_hosts == ("a.example", "*.b.example")
    given = load({"CWM_ALLOWED_ORIGINS": "https://A.example:443/, http://localhost:3000"}, config).security
    assert given.allowed_origins == ("https://a.example", "http://localhost:3000")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CWM_ALLOWED_HOSTS", "https://a.example"),
        ("CWM_ALLOWED_HOSTS", "*"),
        ("CWM_ALLOWED_HOSTS", "a.*.example"),
        ("CWM_ALLOWED_HOSTS", "a.example:8700"),
        ("CWM_ALLOWED_ORIGINS", "*"),
        ("CWM_ALLOWED_ORIGINS", "null"),
        ("CWM_ALLOWED_ORIGINS", "a.example"),
        ("CWM_ALLOWED_ORIGINS", "https://*.example"),
        ("CWM_ALLOWED_ORIGINS", "https://a.example/path"),
        ("CWM_ALLOWED_ORIGINS", "https://u@a.example"),
    ],
)
def test_what_would_admit_everybody_or_nobody_is_refused(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=variable):
        load({variable: value})


def test_the_doctors_table_shows_lists_as_they_are_written() -> None:
    sources = load({"CWM_ALLOWED_HOSTS": "a.example,b.example"}).sources
    assert (
        next(source.value for source in sources if source.name == "allowed_hosts") == "a.example, b.example"
    )


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "169.254.0.1",
        "fe80::1",
        "fe80::1%eth0",
        "[fe80::1]",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "fd00:ec2::254",
        "100.100.100.200",
        "168.63.129.16",
        "metadata.google.internal",
        "Metadata.Google.Internal.",
    ],
)
def test_where_clouds_keep_credentials_is_known(host: str) -> None:
    assert is_link_local(host)


@pytest.mark.parametrize(
    "host", ["10.0.0.1", "127.0.0.1", "::1", "169.253.1.1", "docs.example", "metadata.example"]
)
def test_other_addresses_are_others(host: str) -> None:
    assert not is_link_local(host)


@pytest.mark.parametrize(
    "text", ["", "null", "a.example", "ftp://a.example", "https://a:x", "https://", "https://[::1"]
)
def test_what_is_no_origin_is_none(text: str) -> None:
    assert origin_of(text) is None


LINK_LOCAL = {
    "url": "{url: 'http://169.254.169.254/mcp'}",
    "exchange.token_url": "{url: 'https://a.example', credentials: exchange, exchange: "
    "{token_url: 'https://[fe80::1]/token', client_id: a, client_secret: b}}",
}


@pytest.mark.parametrize("field", LINK_LOCAL)
def test_an_upstream_at_a_link_local_address_is_refused_unless_admitted(tmp_path: Path, field: str) -> None:
    config = tmp_path / "cwm.yaml"
    config.write_text(f"upstreams: {{docs: {LINK_LOCAL[field]}}}")
    with pytest.raises(SettingsError, match=rf"upstreams.docs.{field} .*CWM_ALLOW_LINK_LOCAL"):
        load({}, config)
    assert len(load({"CWM_ALLOW_LINK_LOCAL": "true"}, config).upstreams) == 1
