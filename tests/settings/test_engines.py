"""The engines in ``cwm.yaml``."""

from __future__ import annotations

from pathlib import Path

import pytest

from cwm.domain.engine_rules import EngineRules
from cwm.settings import SettingsError
from cwm.settings.load import load
from tests.certificates import certified


def read(tmp_path: Path, text: str, **environ: str) -> dict[str, object]:
    (tmp_path / "cwm.yaml").write_text(text)
    return dict(load(environ, tmp_path / "cwm.yaml").engines)


def test_an_engine_has_its_own_address_and_key_and_shares_the_rest(tmp_path: Path) -> None:
    text = """
engine: {request_timeout_seconds: 30}
engines:
  one: {url: "http://10.0.0.1:8000/", api_key: "${ONE_KEY}"}
  two: {url: "http://10.0.0.2:8000", lmcache: "http://10.0.0.9:9000"}
  three: {url: "http://10.0.0.3:8000", lmcache: none}
"""
    (tmp_path / "cwm.yaml").write_text(text)
    settings = load({"ONE_KEY": "a long secret"}, tmp_path / "cwm.yaml")
    one, two, three = settings.engines.values()
    assert (one.vllm_url, one.lmcache_url) == ("http://10.0.0.1:8000", "http://10.0.0.1:8081")
    assert one.vllm_api_key is not None
    assert one.vllm_api_key.get_secret_value() == "a long secret"
    assert (two.lmcache_url, three.lmcache_url) == ("http://10.0.0.9:9000", "none")
    assert {one.request_timeout_seconds, two.request_timeout_seconds} == {30}
    assert "a long secret" in settings.secrets()
    assert "ONE_KEY" not in settings.unknown_env


def test_an_engine_may_have_tenants_a_deployment_a_limit_and_files_with_key_and_certificates(
    tmp_path: Path,
) -> None:
    certified(tmp_path)
    (tmp_path / "vllm-key").write_text("a long secret\n")
    text = f"""
engines:
  one:
    url: "https://vllm.test:8000"
    api_key_file: {tmp_path}/vllm-key
    tls: {{ca: {tmp_path}/certificate.pem, cert: {tmp_path}/certificate.pem, key: {tmp_path}/key.pem}}
    tenants: [acme, umbrella]
    deployment: "large, bf16"
    max_running: 64
"""
    (tmp_path / "cwm.yaml").write_text(text)
    one = load({}, tmp_path / "cwm.yaml").engines["one"]
    assert one.rules == EngineRules(frozenset({"acme", "umbrella"}), "large, bf16", 64)
    assert one.vllm_api_key is not None
    assert one.vllm_api_key.get_secret_value() == "a long secret"
    assert one.tls_context() is not None
    assert {path.name for path in one.files} == {"vllm-key", "certificate.pem", "key.pem"}


def test_beside_a_router_there_is_no_lmcache_of_its_own(tmp_path: Path) -> None:
    text = """
engine: {lmcache_url: "http://10.0.0.9:9000"}
engines: {pool: {url: "http://10.0.0.1:8000", router: true}}
"""
    (tmp_path / "cwm.yaml").write_text(text)
    pool = load({}, tmp_path / "cwm.yaml").engines["pool"]
    assert (pool.is_router, pool.lmcache_url) == (True, "http://10.0.0.9:9000")


def test_a_name_stands_for_engines_at_its_addresses(tmp_path: Path) -> None:
    text = """
engines:
  pods: {dns: "vllm.engines.svc:8000", max_running: 8}
  bare: {dns: "bare:80", lmcache: none}
"""
    (tmp_path / "cwm.yaml").write_text(text)
    pods, bare = load({}, tmp_path / "cwm.yaml").engines.values()
    pod = pods.at("10.0.0.7")
    assert (pod.vllm_url, pod.lmcache_url) == ("http://10.0.0.7:8000", "http://10.0.0.7:8081")
    assert (pod.rules.max_running, pod.server_name) == (8, "vllm.engines.svc")
    assert pods.at("fd00::7").vllm_url == "http://[fd00::7]:8000"
    assert pods.at("fd00::7").lmcache_url == "http://[fd00::7]:8081"
    assert bare.at("10.0.0.7").lmcache_url == "none"


def test_without_engines_there_is_the_one_of_the_settings(tmp_path: Path) -> None:
    assert read(tmp_path, "engines:\n") == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("engines: [one]", "engines by name"),
        ("engines: {One: {url: 'http://h:1'}}", "a name has"),
        ("engines: {one: {}}", "needs a 'url' or a 'dns' name"),
        ("engines: {one: {url: 'http://h:1', dns: 'h:1'}}", "and not both"),
        ("engines: {one: {dns: 'h'}}", "engines.one.dns.*a name and a port"),
        ("engines: {one: {dns: 'a..b:1'}}", "engines.one.dns.*a name and a port"),
        (f"engines: {{one: {{dns: '{'a' * 64}.b:1'}}}}", "engines.one.dns.*a name and a port"),
        ("engines: {one: {dns: 'h:1', lmcache: 'http://h:2'}}", "at the same addresses"),
        ("engines: {one: {dns: 'h:1', router: true}}", "it is no router"),
        ("engines: {one: {url: 'ftp://h'}}", "must be an http"),
        ("engines: {one: {url: 'http://u:p@h:1'}}", "must not contain a user"),
        ("engines: {one: {url: 'http://h:1', api_key: '${NOT_SET}'}}", "NOT_SET is not set"),
        ("engines: {one: {url: 'http://h:1', api_key_file: /not/there}}", "api_key_file.*cannot be read"),
        ("engines: {one: {url: 'http://h:1', api_key: a, api_key_file: b}}", "one of them is enough"),
        ("engines: {one: {url: 'http://h:1', tls: {ca: /not/there}}}", "one.tls.*cannot be used"),
        ("engines: {one: {url: 'http://h:1', tls: {cert: /etc/hosts}}}", "need each other"),
        ("engines: {one: {url: 'http://h:1', tenants: ['a b']}}", "engines.one.tenants"),
        ("engines: {one: {url: 'http://h:1', max_running: 0}}", "engines.one.max_running"),
        ("engines: {one: {url: 'http://h:1', color: red}}", "is not a field of an engine"),
    ],
)
def test_what_cannot_be_an_engine_is_refused_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        read(tmp_path, text)
