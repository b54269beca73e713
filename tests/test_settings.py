"""Settings: the contract's names, their precedence, and what a wrong value says."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.adapters.local.secret import load_secret, signing_secrets
from cwm.app import create_app
from cwm.settings import GROUPS, Auth, Isolation, Settings, SettingsError, load
from cwm.settings.load import settings_from


def test_the_contracts_names_and_defaults_hold() -> None:
    settings = load({})
    assert settings.engine.vllm_url == "http://localhost:8000"
    assert settings.database.db_path == Path("~/.cwm/cwm.db").expanduser()
    assert settings.storage.storage_path == Path("~/.cwm/storage").expanduser()
    assert settings.storage.cpu_cache_gb == 8
    assert settings.storage.disk_cache_gb == 50
    assert settings.logging.log_level == "INFO"


def test_the_contracts_names_are_obeyed(tmp_path: Path) -> None:
    settings = load(
        {
            "CWM_VLLM_URL": "http://gpu:9000/",
            "CWM_DB_PATH": str(tmp_path / "a.db"),
            "CWM_STORAGE_PATH": str(tmp_path / "kv"),
            "CWM_CPU_CACHE_GB": "2.5",
            "CWM_DISK_CACHE_GB": "7",
            "CWM_LOG_LEVEL": "debug",
        }
    )
    assert settings.engine.vllm_url == "http://gpu:9000"
    assert settings.database.url() == f"sqlite:///{tmp_path}/a.db"
    assert settings.storage.storage_path == tmp_path / "kv"
    assert (settings.storage.cpu_cache_gb, settings.storage.disk_cache_gb) == (2.5, 7)
    assert settings.logging.log_level == "DEBUG"


def test_the_environment_wins_over_the_file_and_the_file_over_the_default(tmp_path: Path) -> None:
    config = tmp_path / "cwm.yaml"
    config.write_text("http: {port: 9001, host: 127.0.0.2}\n")
    settings = load({"CWM_PORT": "9002"}, config)
    assert (settings.http.port, settings.http.host) == (9002, "127.0.0.2")
    origins = {source.name: source.origin for source in settings.sources}
    assert origins["port"] == "environment"
    assert origins["host"] == str(config)
    assert origins["db_path"] == "default"


def test_secrets_are_masked_wherever_settings_are_shown() -> None:
    settings = load({"CWM_DATABASE_URL": "postgresql://u:hunter2@db/cwm", "CWM_SECRET": "hunter2"})
    shown = [source.value for source in settings.sources]
    assert not any("hunter2" in value for value in shown)
    assert "hunter2" not in repr(settings)
    assert settings.database.url() == "postgresql+asyncpg://u:hunter2@db/cwm"


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ("http: {port: x}", "http.port"),
        ("http: {prot: 1}", "prot"),
        ("htpt: {}", "htpt"),
        ("- a", "groups"),
        ("http: 3", "http"),
        ("http: {", "YAML"),
    ],
)
def test_a_bad_file_is_refused_with_the_place(tmp_path: Path, document: str, named: str) -> None:
    config = tmp_path / "cwm.yaml"
    config.write_text(document)
    with pytest.raises(SettingsError, match=named):
        load({}, config)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("http: {prot: 1}", "http.prot in cwm.yaml: is not a setting of 'http'; did you mean 'port'?"),
        ("http: {zzz: 1}", "http.zzz in cwm.yaml: is not a setting of 'http'."),
        ("http: {port: x}", "http.port in cwm.yaml: input should be a valid integer, "),
        ("engine: {vllm_url: x}", "engine.vllm_url in cwm.yaml: must be an http:// or https:// URL."),
        ("auth: {oauth_issuer: 'https://a'}", "auth: CWM_OAUTH_ISSUER needs CWM_PUBLIC_URL, "),
    ],
)
def test_what_is_wrong_with_a_setting_is_one_sentence(document: str, said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        settings_from(document.encode(), {}, Path("cwm.yaml"))
    assert str(refused.value).startswith(said)


def test_a_value_that_stands_in_a_secret_file_is_refused_by_the_variable_that_names_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "url").write_text("mysql://db/cwm")
    with pytest.raises(SettingsError, match=r"^CWM_DATABASE_URL_FILE: has the scheme 'mysql'"):
        load({"CWM_DATABASE_URL_FILE": str(tmp_path / "url")})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CWM_PORT", "65536"),
        ("CWM_PORT", "many"),
        ("CWM_VLLM_URL", "gpu:8000"),
        ("CWM_LOG_LEVEL", "LOUD"),
        ("CWM_CACHE_SCOPE", "planet"),
        ("CWM_TENANT", "a b"),
    ],
)
def test_a_bad_variable_is_refused_by_name(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=variable):
        load({variable: value})


def test_a_config_file_that_was_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="does not exist"):
        load({"CWM_CONFIG": str(tmp_path / "missing.yaml")})


def test_an_empty_name_of_a_config_file_is_as_good_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load({"CWM_CONFIG": ""}).http.port == 8700
    (tmp_path / "cwm.yaml").write_text("http: {port: 9001}")
    assert load({"CWM_CONFIG": ""}).http.port == 9001


def test_a_database_of_another_kind_is_refused() -> None:
    with pytest.raises(SettingsError, match="mysql"):
        load({"CWM_DATABASE_URL": "mysql://db/cwm"}).database.url()


def test_every_setting_has_one_name_and_a_description() -> None:
    names = [name for group in GROUPS.values() for name in group.model_fields]
    assert len(names) == len(set(names))
    assert all(spec.description for group in GROUPS.values() for spec in group.model_fields.values())


def test_unknown_variables_are_remembered_for_the_doctor() -> None:
    assert load({"CWM_PROT": "1", "HOME": "/"}).unknown_env == ("CWM_PROT",)


@given(st.integers(0, 65535))
def test_any_port_survives_the_environment(port: int) -> None:
    assert load({"CWM_PORT": str(port)}).http.port == port


def test_the_salt_key_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    isolation = load({"CWM_SECRET_FILE": str(tmp_path / "deep" / "secret")}).isolation
    key = load_secret(isolation)
    assert len(key) == 64
    assert load_secret(isolation) == key
    assert (tmp_path / "deep" / "secret").stat().st_mode & 0o777 == 0o600


def test_an_empty_key_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("\n")
    with pytest.raises(SettingsError, match="empty"):
        load_secret(load({"CWM_SECRET_FILE": str(tmp_path / "secret")}).isolation)


def test_the_secret_in_force_signs_and_the_one_before_it_still_counts() -> None:
    assert signing_secrets(load({"CWM_SECRET": "new"}).isolation) == (b"new",)
    both = {"CWM_SECRET": "new", "CWM_PREVIOUS_SECRET": "old"}
    assert signing_secrets(load(both).isolation) == (b"new", b"old")
    assert "old" not in str(load(both).isolation)


def test_stored_results_have_a_quota_unless_it_is_zero() -> None:
    assert load({}).stored_results.quota_bytes() == 2**30
    assert load({"CWM_RESULT_QUOTA_MB": "0.5"}).stored_results.quota_bytes() == 2**19
    assert load({"CWM_RESULT_QUOTA_MB": "0"}).stored_results.quota_bytes() is None


def test_an_address_beyond_loopback_is_refused_without_authentication(tmp_path: Path) -> None:
    environ = {
        "CWM_HOST": "0.0.0.0",
        "CWM_SECRET_FILE": str(tmp_path / "s"),
        "CWM_DB_PATH": str(tmp_path / "d"),
    }
    with pytest.raises(SettingsError, match="CWM_ALLOW_UNAUTHENTICATED"):
        create_app(load(environ))
    create_app(load({**environ, "CWM_ALLOW_UNAUTHENTICATED": "true"}))


def test_sessions_are_private_where_requests_are_authenticated_unless_it_is_said_otherwise() -> None:
    assert Settings().session_visibility() == "tenant"
    known = Auth(api_keys=True)
    assert Settings(auth=known).session_visibility() == "private"
    assert Settings(auth=known).isolation.window_visibility == "tenant"
    shared = Isolation(session_visibility="tenant")
    assert Settings(auth=known, isolation=shared).session_visibility() == "tenant"


def test_settings_cannot_be_changed() -> None:
    settings = Settings()
    with pytest.raises(ValueError, match="frozen"):
        settings.http.port = 1  # type: ignore[misc]
