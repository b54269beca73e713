"""Secrets that stand in files."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from cwm.settings import GROUPS, SettingsError, load
from cwm.settings.groups import is_secret

SECRETS = [
    (title, name)
    for title, group in GROUPS.items()
    for name, spec in group.model_fields.items()
    if is_secret(spec) and f"{name}_file" not in group.model_fields
]


def kept(folder: Path, content: bytes) -> str:
    path = folder / "secret"
    path.write_bytes(content)
    return str(path)


@pytest.mark.parametrize(("group", "name"), SECRETS)
def test_every_secret_may_stand_in_a_file(tmp_path: Path, group: str, name: str) -> None:
    variable = f"CWM_{name.upper()}_FILE"
    scheme = "postgresql" if name == "database_url" else "redis"
    secret = f"{scheme}://a:hunter2@h" if name.endswith("_url") else "name= hunter2"
    if name == "registry_key":
        secret = "hunter2" * 5
    settings = load({variable: kept(tmp_path, f"{secret}\n".encode())})
    value = getattr(getattr(settings, group), name)
    assert isinstance(value, SecretStr)
    assert value.get_secret_value() == secret
    assert settings.unknown_env == ()
    source = next(source for source in settings.sources if source.name == name)
    assert source.origin == str(tmp_path / "secret")
    assert "hunter2" not in source.value


def test_registry_keys_are_separated_by_white_space_and_long_enough(tmp_path: Path) -> None:
    first, second = "1" * 32, "2" * 44
    keys = load({"CWM_REGISTRY_KEY_FILE": kept(tmp_path, f"{first}\n  {second}\n".encode())})
    assert keys.database.registry_keys() == (first, second)
    assert {first, second} <= keys.secrets()
    assert load({}).database.registry_keys() == ()
    with pytest.raises(SettingsError, match="CWM_REGISTRY_KEY: each key needs 32 characters") as refused:
        load({"CWM_REGISTRY_KEY": f"{first} hunter2"})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(("content", "value"), [(b" a \r\n", " a "), (b"a\n\n", "a"), ("é".encode(), "é")])
def test_only_the_line_ends_after_it_are_no_part_of_it(tmp_path: Path, content: bytes, value: str) -> None:
    loaded = load({"CWM_VLLM_API_KEY_FILE": kept(tmp_path, content)}).engine.vllm_api_key
    assert loaded is not None
    assert loaded.get_secret_value() == value


def test_a_variable_and_its_file_at_once_are_an_error_that_says_so(tmp_path: Path) -> None:
    both = {"CWM_VLLM_API_KEY": "hunter2", "CWM_VLLM_API_KEY_FILE": kept(tmp_path, b"hunter3")}
    with pytest.raises(
        SettingsError, match=r"CWM_VLLM_API_KEY and CWM_VLLM_API_KEY_FILE are both set"
    ) as told:
        load(both)
    assert "hunter" not in str(told.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"\xff", "not UTF-8"),
        (b"a" * 70_000, "more than 65536 bytes"),
    ],
)
def test_a_file_without_a_secret_is_refused(tmp_path: Path, content: bytes, told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        load({"CWM_REDIS_URL_FILE": kept(tmp_path, content)})


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"CWM_REDIS_URL_FILE names .*missing, which cannot be read: No such"
    ):
        load({"CWM_REDIS_URL_FILE": str(tmp_path / "missing")})


def test_an_upstreams_variable_may_stand_in_a_file_too(tmp_path: Path) -> None:
    config = tmp_path / "cwm.yaml"
    config.write_text("upstreams: {docs: {url: 'https://docs.example', headers: {X-Key: 'k ${DOCS_KEY}'}}}")
    path = kept(tmp_path, b"hunter2\n")
    assert load({"DOCS_KEY_FILE": path}, config).upstreams[0].headers == {"X-Key": "k hunter2"}
    with pytest.raises(SettingsError, match=r"upstreams.docs.headers.X-Key in .*both set"):
        load({"DOCS_KEY_FILE": path, "DOCS_KEY": "x"}, config)


def test_all_that_is_secret_is_known_wherever_it_stands(tmp_path: Path) -> None:
    config = tmp_path / "cwm.yaml"
    config.write_text(
        "upstreams:\n"
        "  docs: {url: 'https://docs.example', headers: {Authorization: 'Bearer ${TOKEN}'}}\n"
        "  mail: {command: mail, env: {MAIL_PASSWORD: '${TOKEN}2', LANG: german}}\n"
        "  drive:\n"
        "    url: https://drive.example\n"
        "    credentials: exchange\n"
        "    exchange: {token_url: 'https://id.example', client_id: cwm, client_secret: '${TOKEN}3'}\n"
    )
    environ = {"TOKEN": "tok", "CWM_REDIS_URL": "redis://:p%40ss@h", "CWM_VLLM_API_KEY": "key"}
    secrets = load(environ, config).secrets()
    assert secrets == {"tok", "tok2", "tok3", "redis://:p%40ss@h", "p%40ss", "p@ss", "key"}


def test_the_engines_urls_hold_no_password() -> None:
    with pytest.raises(SettingsError, match="user or a password") as told:
        load({"CWM_VLLM_URL": "http://u:hunter2@gpu:8000"})
    assert "hunter2" not in str(told.value)
