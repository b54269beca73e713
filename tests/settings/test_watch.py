"""Hot reload on a real folder, by every way in which files are saved."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from cwm.domain.autosave import AutosavePolicy
from cwm.domain.habits import Repair
from cwm.domain.keep import KeepPolicy
from cwm.settings import Limits, Settings, load
from cwm.settings.changes import SettingChange
from cwm.settings.engines import EngineEntry
from cwm.settings.watch import ReloadOutcome, watch

_BOUND_SECONDS = 20

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def naming(*names: str) -> str:
    return "upstreams:\n" + "".join(f"  {name}: {{command: x}}\n" for name in names)


def save(config: Path, text: str) -> None:
    """Write in place."""
    config.write_text(text)


def save_by_rename(config: Path, text: str) -> None:
    draft = config.with_name(".cwm.yaml.swp")
    draft.write_text(text)
    draft.replace(config)


def publish(mount: Path, version: str, text: str) -> None:
    """As Kubernetes does with a config map: a new folder, and one link that is swapped."""
    folder = mount / version
    folder.mkdir(parents=True)
    (folder / "cwm.yaml").write_text(text)
    (mount / "..data_tmp").symlink_to(version)
    (mount / "..data_tmp").replace(mount / "..data")


@dataclass
class Heard:
    """What a watch handed on, told and logged, as a test waits for it."""

    applied: list[Settings] = field(default_factory=list)
    outcomes: list[ReloadOutcome] = field(default_factory=list)
    logged: list[EventDict] = field(default_factory=list)
    refuse: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def apply(self, new: Settings) -> None:
        if self.refuse:
            raise RuntimeError("cannot be applied")
        self.applied.append(new)
        self.news.set()

    async def on_outcome(self, outcome: ReloadOutcome, _changes: Sequence[SettingChange]) -> None:
        self.outcomes.append(outcome)

    def log(self, _logger: object, _method: str, event: EventDict) -> EventDict:
        self.news.set()
        return event

    async def upstreams(self, *names: str) -> Settings:
        """Wait until exactly these are in force."""
        await self._until(lambda: bool(self.applied) and _names(self.applied[-1]) == names)
        return self.applied[-1]

    async def event(self, name: str, times: int = 1) -> EventDict:
        """Wait until the log has this so often."""
        await self._until(lambda: len(self._events(name)) >= times)
        return self._events(name)[times - 1]

    def _events(self, name: str) -> list[EventDict]:
        return [entry for entry in self.logged if entry["event"] == name]

    async def _until(self, it_is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(_BOUND_SECONDS):
            while not it_is_so():
                self.news.clear()
                await self.news.wait()


def _names(settings: Settings) -> tuple[str, ...]:
    return tuple(spec.name for spec in settings.upstreams)


@asynccontextmanager
async def watching(config: Path, current: Settings | None = None) -> AsyncIterator[Heard]:
    heard = Heard()
    current = current or load({"CWM_CONFIG": str(config)})
    with capture_logs([heard.log]) as heard.logged:
        task = asyncio.create_task(
            watch(current, heard.apply, environ={}, config=config, on_outcome=heard.on_outcome), name="watch"
        )
        try:
            yield heard
        finally:
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "etc" / "cwm.yaml"
    path.parent.mkdir()
    path.write_text(naming("first"))
    return path


async def test_a_file_written_in_place_is_applied(config: Path) -> None:
    async with watching(config) as heard:
        save(config, naming("first", "second"))
        await heard.upstreams("first", "second")
        save(config, naming("second"))
        await heard.upstreams("second")

    assert heard.outcomes == [ReloadOutcome.APPLIED] * 2
    assert [entry["changed"] for entry in heard.logged] == [["upstreams.second"], ["upstreams.first"]]


async def test_what_memory_may_take_and_what_leaves_it_first_is_applied(config: Path) -> None:
    async with watching(config) as heard:
        save(
            config,
            naming("second")
            + "context: {context_memory_mb: 7, context_eviction: lfu, context_versions: 9}\n",
        )
        settings = await heard.upstreams("second")
        waits = await heard.event("settings_changed")

    context = settings.context
    assert (context.context_memory_mb, context.context_eviction, context.context_versions) == (7, "lfu", 1000)
    assert heard.logged[0]["changed"] == [
        "upstreams.first",
        "upstreams.second",
        "context.context_eviction",
        "context.context_memory_mb",
    ]
    assert waits["settings"] == ["context.context_versions"]


async def test_every_limit_on_how_much_a_caller_may_ask_for_is_applied(config: Path) -> None:
    """How heads and bodies come in is set up with the socket, and the store that counts with the gateway."""
    fixed = {
        "rate_limit_on_failure",
        "body_memory_bytes",
        "body_memory_principal_bytes",
        "max_header_bytes",
        "header_timeout_seconds",
        "body_timeout_seconds",
    }
    limits = {
        name: "7/hour" if isinstance(field.default, str) else 7
        for name, field in Limits.model_fields.items()
        if name not in fixed
    }
    async with watching(config) as heard:
        save(config, json.dumps({"limits": limits}))
        applied = (await heard.upstreams()).limits
    assert {name: getattr(applied, name) for name in limits} == limits


async def test_a_file_saved_by_rename_is_applied_each_time(config: Path) -> None:
    async with watching(config) as heard:
        for name in ("a", "b", "c"):
            save_by_rename(config, naming(name))
            await heard.upstreams(name)


async def test_a_file_moved_aside_and_written_anew_is_applied(config: Path) -> None:
    async with watching(config) as heard:
        shutil.move(config, f"{config}~")
        save(config, naming("second"))
        await heard.upstreams("second")


async def test_a_file_that_is_gone_keeps_what_it_said_until_it_is_back(config: Path) -> None:
    async with watching(config) as heard:
        save(config, naming("second"))
        await heard.upstreams("second")
        shutil.move(config, config.parents[1])
        gone = await heard.event("settings_refused")
        assert gone["why"] == f"{config} is gone."
        assert _names(heard.applied[-1]) == ("second",)
        save(config, naming("second"))
        await heard.event("settings_good_again")
        save(config, naming("third"))
        await heard.upstreams("third")

    assert [_names(applied) for applied in heard.applied] == [("second",), ("third",)]


async def test_a_file_that_was_never_there_may_appear(tmp_path: Path) -> None:
    config = tmp_path / "cwm.yaml"
    async with watching(config, Settings()) as heard:
        (tmp_path / "other").touch()
        save(config, naming("first"))
        await heard.upstreams("first")
    assert heard.outcomes == [ReloadOutcome.APPLIED]


async def test_a_folder_that_was_never_there_may_appear(tmp_path: Path) -> None:
    config = tmp_path / "etc" / "cwm" / "cwm.yaml"
    async with watching(config, Settings()) as heard:
        config.parent.mkdir(parents=True)
        save(config, naming("first"))
        await heard.upstreams("first")
        save(config, naming("second"))
        await heard.upstreams("second")


async def test_a_folder_that_is_made_anew_is_watched_again(config: Path) -> None:
    async with watching(config) as heard:
        save(config, naming("second"))
        await heard.upstreams("second")
        shutil.move(config.parent, f"{config.parent}.old")
        shutil.copytree(f"{config.parent}.old", config.parent)
        save(config, naming("third"))
        await heard.upstreams("third")
        save(config, naming("fourth"))
        await heard.upstreams("fourth")


async def test_a_mounted_config_map_that_swaps_its_links_is_applied(tmp_path: Path) -> None:
    publish(tmp_path, "..1", naming("first"))
    config = tmp_path / "cwm.yaml"
    config.symlink_to("..data/cwm.yaml")
    async with watching(config) as heard:
        publish(tmp_path, "..2", naming("second"))
        await heard.upstreams("second")
        shutil.rmtree(tmp_path / "..1")
        publish(tmp_path, "..3", naming("third"))
        await heard.upstreams("third")


async def test_a_file_behind_a_link_is_watched_where_it_is(config: Path, tmp_path: Path) -> None:
    linked = tmp_path / "cwm.yaml"
    linked.symlink_to(config)
    async with watching(linked) as heard:
        save(config, naming("second"))
        await heard.upstreams("second")


async def test_what_changed_between_start_and_watch_is_applied(config: Path) -> None:
    before = load({}, config)
    save(config, naming("second"))
    async with watching(config, before) as heard:
        await heard.upstreams("second")


async def test_a_bad_file_keeps_what_is_in_force_and_the_next_good_one_is_applied(config: Path) -> None:
    async with watching(config) as heard:
        save(config, "upstreams: {docs: {url: 'ftp://x'}}\n")
        refused = await heard.event("settings_refused")
        assert refused["log_level"] == "error"
        assert refused["why"].startswith(f"upstreams.docs.url in {config}: ")
        save(config, "upstreams: {docs: {")
        await heard.event("settings_refused", times=2)
        assert heard.applied == []
        save(config, naming("second"))
        await heard.upstreams("second")

    assert heard.outcomes == [ReloadOutcome.REFUSED, ReloadOutcome.REFUSED, ReloadOutcome.APPLIED]


async def test_a_bad_file_that_is_put_back_is_told_and_applies_nothing(config: Path) -> None:
    async with watching(config) as heard:
        save(config, "upstreams: 3\n")
        await heard.event("settings_refused")
        save(config, naming("first"))
        await heard.event("settings_good_again")

    assert heard.applied == []


@pytest.mark.parametrize("emptied", ["", "\n"])
async def test_an_emptied_file_keeps_what_is_in_force_until_something_is_written(
    config: Path, emptied: str
) -> None:
    async with watching(config) as heard:
        save(config, emptied)
        refused = await heard.event("settings_refused")
        assert refused["why"] == f"{config} is empty; to have no upstreams write `upstreams: {{}}`."
        save(config, naming("first"))
        await heard.event("settings_good_again")
        save(config, "upstreams: {}\n")
        await heard.upstreams()
        save(config, emptied)
        await heard.event("settings_refused", times=2)
        save(config, "# none any more\n")
        await heard.event("settings_good_again", times=2)

    assert len(heard.applied) == 1


async def test_a_file_that_was_always_empty_is_no_fault(config: Path) -> None:
    save(config, "")
    async with watching(config) as heard:
        save(config, "\n")
        save(config, naming("first"))
        await heard.upstreams("first")

    assert heard.outcomes == [ReloadOutcome.APPLIED]


async def test_engines_that_this_process_has_started_are_served_whatever_the_file_lists(config: Path) -> None:
    save(config, "")
    own = {"engine-1": EngineEntry(), "engine-2": EngineEntry()}
    started = replace(load({"CWM_CONFIG": str(config)}), engines=own, starts_engines=True)
    async with watching(config, started) as heard:
        save(config, naming("first") + "engines: {other: {url: 'http://other:8000'}}\n")
        settings = await heard.upstreams("first")

    assert settings.engines == own
    assert heard.outcomes == [ReloadOutcome.APPLIED]


async def test_a_bad_upstream_keeps_the_good_ones_beside_it_from_being_applied(config: Path) -> None:
    async with watching(config) as heard:
        save(config, naming("first", "second") + "  third: {}\n")
        await heard.event("settings_refused")

    assert heard.applied == []


async def test_quick_writes_end_with_the_last_one_applied(config: Path) -> None:
    async with watching(config) as heard:
        for number in range(20):
            save(config, naming(f"number-{number}"))
        await heard.upstreams("number-19")

    assert ReloadOutcome.REFUSED not in heard.outcomes
    assert all(len(applied.upstreams) == 1 for applied in heard.applied)


async def test_what_says_the_same_is_not_applied(config: Path) -> None:
    async with watching(config) as heard:
        os.utime(config)
        save(config, "# a comment\n" + naming("first"))
        save(config.with_name("other.yaml"), naming("other"))
        save(config, naming("second"))
        await heard.upstreams("second")

    assert len(heard.applied) == 1


async def test_the_log_level_changes_while_the_gateway_runs(config: Path) -> None:
    async with watching(config) as heard:
        save(config, naming("second") + "logging: {log_level: debug}\n")
        entry = await heard.event("settings_applied")

    assert heard.applied[0].logging.log_level == "DEBUG"
    assert entry["changed"] == ["upstreams.first", "upstreams.second", "logging.log_level"]


async def test_budgets_and_policies_of_tools_change_while_the_gateway_runs(config: Path) -> None:
    async with watching(config) as heard:
        save(config, naming("first") + "results: {max_tokens: 5000}\ntools: {a: {}, b: {preview: tail}}\n")
        first = await heard.event("settings_applied")
        save(config, naming("first") + "results: {max_tokens: 5000}\ntools: {a: {max_tokens: many}}\n")
        refused = await heard.event("settings_refused")
        save(config, naming("first") + "results: {max_tokens: 5000}\ntools: {b: {preview: tail}, a: {}}\n")
        second = await heard.event("settings_applied", times=2)
        save(config, naming("first"))
        third = await heard.event("settings_applied", times=3)

    assert [entry["changed"] for entry in (first, second, third)] == [
        ["results", "tools.a", "tools.b"],
        ["tools"],
        ["results", "tools.a", "tools.b"],
    ]
    assert refused["why"].startswith(f"tools.a.max_tokens in {config}: ")
    assert [applied.budgets.policies.of("b").max_tokens for applied in heard.applied] == [5000, 5000, 10_000]


async def test_automatic_windows_change_while_the_gateway_runs(config: Path) -> None:
    async with watching(config) as heard:
        save(config, naming("first") + "freeze: {auto: {every_tokens: 9, tenants: {acme: {keep: 1}}}}\n")
        first = await heard.event("settings_applied")
        save(
            config, naming("first") + "freeze: {auto: {every_tokens: 9, tenants: {acme: {enabled: false}}}}\n"
        )
        second = await heard.event("settings_applied", times=2)

    assert first["changed"] == ["freeze.auto", "freeze.auto.tenants.acme"]
    assert second["changed"] == ["freeze.auto.tenants.acme"]
    assert [applied.autosave.of("acme") for applied in heard.applied] == [AutosavePolicy(9, keep=1), None]


async def test_models_aliases_change_while_the_gateway_runs(config: Path) -> None:
    async with watching(config) as heard:
        save(config, naming("first") + "models: {aliases: {'claude-*': llama, gpt: llama}}\n")
        first = await heard.event("settings_applied")
        save(config, naming("first") + "models: {aliases: {'claude-*': qwen, gpt: llama}}\n")
        second = await heard.event("settings_applied", times=2)

    assert first["changed"] == ["models.aliases.claude-*", "models.aliases.gpt"]
    assert second["changed"] == ["models.aliases.claude-*"]
    assert [dict(applied.aliases.by_pattern)["claude-*"] for applied in heard.applied] == ["llama", "qwen"]


async def test_what_is_kept_changes_while_the_gateway_runs(config: Path) -> None:
    async with watching(config) as heard:
        save(config, naming("first") + "keep: {tenants: {acme: {messages: none}}}\n")
        applied = await heard.event("settings_applied")

    assert applied["changed"] == ["keep.tenants.acme"]
    assert [each.keep.of("acme") for each in heard.applied] == [KeepPolicy(messages=False)]


async def test_repairs_change_while_the_gateway_runs(config: Path) -> None:
    async with watching(config) as heard:
        save(config, naming("first") + "repairs: {clients: {'*': [tool_order]}}\n")
        applied = await heard.event("settings_applied")

    assert applied["changed"] == ["repairs"]
    assert [each.repairs.of("acme", "any") for each in heard.applied] == [{Repair.TOOL_ORDER}]


async def test_a_setting_that_needs_a_restart_is_named_and_left_as_it_is(config: Path) -> None:
    async with watching(config) as heard:
        save(config, naming("second") + "http: {port: 9999}\nisolation: {secret: hunter2}\n")
        applied = await heard.upstreams("second")
        waits = await heard.event("settings_changed")
        save(config, naming("third") + "http: {port: 9999}\nisolation: {secret: hunter2}\n")
        await heard.upstreams("third")

    assert (waits["settings"], waits["do"]) == (["http.port", "isolation.secret"], "restart to apply")
    assert (applied.http.port, applied.isolation.secret) == (8700, None)
    assert [entry["event"] for entry in heard.logged].count("settings_changed") == 1
    assert "hunter2" not in str(heard.logged)


async def test_what_a_flag_set_is_not_taken_for_a_change_of_the_file(config: Path) -> None:
    from cwm.cli.terminal.console import overridden

    loaded = overridden(load({}, config), {"port": 9001, "log_level": "ERROR"})
    async with watching(config, loaded) as heard:
        save(config, naming("second"))
        applied = await heard.upstreams("second")

    assert (applied.http.port, applied.logging.log_level) == (9001, "ERROR")
    assert [entry["event"] for entry in heard.logged] == ["settings_applied"]


async def test_a_variable_that_is_missing_refuses_the_file(config: Path) -> None:
    async with watching(config) as heard:
        save(config, "upstreams: {docs: {command: x, env: {A: '${DOCS_KEY}'}}}\n")
        refused = await heard.event("settings_refused")

    assert "the variable DOCS_KEY is not set" in refused["why"]


async def test_what_could_not_be_applied_is_told_and_tried_with_the_next_change(config: Path) -> None:
    async with watching(config) as heard:
        heard.refuse = True
        save(config, naming("second"))
        await heard.event("settings_not_applied")
        heard.refuse = False
        save(config, naming("second") + "# again\n")
        await heard.upstreams("second")

    assert heard.outcomes == [ReloadOutcome.FAILED, ReloadOutcome.APPLIED]


async def test_changed_settings_are_logged_with_what_was_and_what_is_and_secrets_masked(config: Path) -> None:
    docs = "upstreams: {{docs: {{url: 'https://docs.test/{path}', headers: {{X-Key: {key}, X-V: '1'}}}}}}\n"
    save(config, docs.format(path="v1", key="first-key"))
    current = load({}, config)
    async with watching(config, current) as heard:
        save(
            config,
            docs.format(path="v2?key=second-key", key="second-key")
            + "limits: {rate_limit_tenant: 5/minute}\nisolation: {secret: hunter2}\nhttp: {port: 9}\n",
        )
        applied = await heard.event("settings_applied")
        waits = await heard.event("settings_changed")

    assert applied["before"] == {
        "upstreams.docs": "url=https://docs.test/v1, headers=[hidden]",
        "limits.rate_limit_tenant": str(current.limits.rate_limit_tenant),
    }
    assert applied["after"] == {
        "upstreams.docs": "url=https://docs.test/v2?key=[hidden], headers=[hidden]",
        "limits.rate_limit_tenant": "5/minute",
    }
    assert waits["before"] == {"http.port": "8700", "isolation.secret": ""}
    assert waits["after"] == {"http.port": "9", "isolation.secret": "**********"}
    assert heard.outcomes == [ReloadOutcome.APPLIED, ReloadOutcome.WAITS]
    assert not {"first-key", "second-key", "hunter2"} & set(str(heard.logged).split())


async def test_a_changed_key_of_an_engine_is_applied_also_where_it_stands_in_a_file(config: Path) -> None:
    key = config.with_name("vllm-key")
    key.write_text("first-key")
    inline = "engines: {{one: {{url: 'http://h:1', api_key: {key}}}, two: {{url: 'http://h:2', api_key_file: {path}}}}}\n"
    save(config, inline.format(key="first-key", path=key))
    async with watching(config) as heard:
        save(config, inline.format(key="other-key", path=key))
        applied = await heard.event("settings_applied")
        assert applied["changed"] == ["engines.one"]
        key.write_text("second-key")
        applied = await heard.event("settings_applied", 2)
        assert applied["changed"] == ["engines.two"]
        assert applied["after"] == {"engines.two": "api_key=[hidden], file_digest=[hidden]"}
    two = heard.applied[-1].engines["two"].vllm_api_key
    assert two is not None
    assert two.get_secret_value() == "second-key"
    assert not any(each in str(heard.logged) for each in ("first-key", "other-key", "second-key"))


async def test_a_list_whose_key_file_is_not_there_yet_is_applied_when_it_is(config: Path) -> None:
    key = config.parents[1] / "vllm-key"
    async with watching(config) as heard:
        save(config, f"engines: {{one: {{url: 'http://h:1', api_key_file: {key}}}}}\n")
        await heard.event("settings_refused")
        key.write_text("first-key")
        await heard.event("settings_applied")
    assert heard.outcomes == [ReloadOutcome.REFUSED, ReloadOutcome.APPLIED]
