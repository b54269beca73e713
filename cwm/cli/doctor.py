"""``cwm doctor``: shows the settings in force, checks every part of the installation, and says how to fix faults."""

from __future__ import annotations

import difflib
import platform
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cwm.cli.terminal.console import (
    FOUND_FAULTS,
    Interrupts,
    load_settings,
    print_json,
    print_table,
    run_to_end,
)

if TYPE_CHECKING:
    from cwm.adapters.sql.database import Database
    from cwm.domain.upstream import UpstreamSpec
    from cwm.services.health.doctor import Doctor, Examined
    from cwm.services.health.findings import Finding, Findings
    from cwm.settings import Settings


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
) -> None:
    """Examine this installation: settings, versions, registry, vLLM, LMCache, upstreams, and whether they agree.

    Sends a few small probes under a salt of their own and deletes what they stored. Exit code 1 when there is a
    fault; warnings alone give 0.
    """
    settings = load_settings()

    async def work(_: Interrupts) -> Examined:
        async with AsyncExitStack() as closing:
            examination = await (await _doctor(settings, closing))()
            around = await _around(settings, closing)
            return replace(examination, findings=(*examination.findings, *around))

    examination = run_to_end(work)
    findings = [*_settings_findings(settings), *examination.findings]
    faults = sum(finding.status == "fault" for finding in findings)
    if as_json:
        print_json(_document(settings, examination, findings, ok=not faults))
    else:
        _print(settings, examination, findings)
    if faults:
        raise typer.Exit(FOUND_FAULTS)


async def _doctor(settings: Settings, closing: AsyncExitStack) -> Doctor:
    """A doctor with read access only: it creates no secret and changes no schema."""
    from cwm.adapters.local.clock import SystemClock
    from cwm.adapters.redis.room import shared_tier_room
    from cwm.adapters.sql.clock import time_of
    from cwm.adapters.sql.database import open_database
    from cwm.adapters.sql.registry.registry import SqlRegistry
    from cwm.services.health.doctor import Doctor
    from cwm.wiring.engine_list import EngineList

    database, engines = open_database(settings.database.url()), EngineList(settings)
    await engines.look()
    engine, kv_tier = engines.fleet, engines.kv_tier
    closing.push_async_callback(database.dispose)
    closing.push_async_callback(engine.aclose)
    closing.push_async_callback(kv_tier.aclose)
    redis_url = settings.storage.redis_url

    return Doctor(
        SqlRegistry(database),
        engine,
        kv_tier,
        SystemClock(),
        lambda: _schema(settings, database),
        lambda: time_of(database),
        (lambda: shared_tier_room(redis_url.get_secret_value())) if redis_url else None,
        settings.engine.weights_digest,
        {name: entry.rules for name, entry in engines.entries().items()} if settings.engines else None,
    )


async def _around(settings: Settings, closing: AsyncExitStack) -> list[Finding]:
    """Findings about the shared store and the upstreams."""
    from cwm.adapters.redis.agents.agent_sessions import RedisAgentSessions
    from cwm.adapters.redis.connection import connect
    from cwm.adapters.telemetry.logging import configure_logging
    from cwm.adapters.upstream.connector import SdkConnector
    from cwm.services.health.examine_upstreams import examine_shared_store, examine_upstreams
    from cwm.services.health.findings import Findings

    # Findings are printed; log lines of the adapters would only disturb them.
    configure_logging("ERROR")
    findings = Findings()
    await _examine_audit(settings, findings)
    if (url := settings.shared_store_url()) is not None:
        client = connect(url)
        closing.push_async_callback(client.aclose)
        await examine_shared_store(
            findings, RedisAgentSessions(client, settings.shared.agent_session_ttl_seconds)
        )
    if settings.upstreams:
        connector = SdkConnector(link_local=settings.security.allow_link_local)
        closing.push_async_callback(connector.aclose)
        await examine_upstreams(findings, connector, settings.upstreams)
    return findings.made


async def _examine_audit(settings: Settings, findings: Findings) -> None:
    from cwm.adapters.local.secret import audit_keys
    from cwm.adapters.sql.audit.trail import SqlAuditTrail
    from cwm.adapters.sql.database import open_database
    from cwm.services.health.examine_audit import examine_audit
    from cwm.settings import SettingsError

    try:
        keys = audit_keys(settings.isolation, make=False)
    except SettingsError:
        findings.skipped("there is no secret here", "audit")
        return
    database = open_database(settings.database.url())
    try:
        await examine_audit(findings, SqlAuditTrail(database, keys), keys)
    finally:
        await database.dispose()


async def _schema(settings: Settings, database: Database) -> tuple[bool, str]:
    from cwm.adapters.sql import schema
    from cwm.adapters.sql.schema_error import SchemaError

    if settings.database.database_url is None and await schema.is_empty(database):
        return True, "no tables yet; the gateway creates them when it starts"
    try:
        await schema.require_current(database)
    except SchemaError as error:
        return False, str(error)
    return True, f"reachable, schema {schema.REVISIONS[-1]}"


def _settings_findings(settings: Settings) -> list[Finding]:
    from cwm.services.health.findings import Findings

    findings = Findings()
    for variable in settings.unknown_env:
        guess = difflib.get_close_matches(variable, [source.env for source in settings.sources], n=1)
        findings.warn(
            "settings",
            f"{variable} is set, but no such setting exists.",
            f"Did you mean {guess[0]}?" if guess else "Unset it; docs/settings.md lists all settings.",
        )
    if not findings.made:
        findings.ok("settings", "every CWM_* variable is known")
    return findings.made


def _upstream(spec: UpstreamSpec) -> dict[str, Any]:
    """The printable facts of an upstream. Arguments, queries and header values are left out: they can be secrets."""
    return {
        "name": spec.name,
        "reached": _without_query(spec.url) if spec.url else f"runs {spec.command[0]}",
        "stateless": spec.stateless,
        "credentials": spec.credentials.value,
    }


def _policies(settings: Settings) -> list[dict[str, Any]]:
    """The default policy, then those of single tools."""
    budgets = settings.budgets
    policies = [("*", budgets.policies.default), *budgets.policies.by_name.items()]
    return [
        {
            "tool": name,
            "max_tokens": policy.max_tokens if budgets.enabled else None,
            "preview": policy.preview.value,
            "preview_tokens": policy.preview_tokens,
            "references": policy.references and budgets.references.enabled,
            "shared": policy.shared,
        }
        for name, policy in policies
    ]


def _without_query(url: str) -> str:
    from urllib.parse import urlsplit, urlunsplit

    parts = urlsplit(url)
    return urlunsplit(parts._replace(query="***" if parts.query else "", fragment=""))


def _versions(examination: Examined) -> dict[str, str]:
    return {
        "cwm": version("cwm"),
        "python": platform.python_version(),
        "fastmcp": version("fastmcp"),
        "vllm": examination.vllm_version or "unknown",
        "lmcache": examination.lmcache_version or "unknown",
    }


def _document(
    settings: Settings, examination: Examined, findings: list[Finding], *, ok: bool
) -> dict[str, Any]:
    return {
        "ok": ok,
        "settings": [
            {"group": s.group, "name": s.name, "value": s.value, "origin": s.origin} for s in settings.sources
        ],
        "upstreams": [_upstream(spec) for spec in settings.upstreams],
        "tools": _policies(settings),
        "versions": _versions(examination),
        "findings": [asdict(finding) for finding in findings],
    }


def _print(settings: Settings, examination: Examined, findings: list[Finding]) -> None:
    print("Settings")
    print_table(
        ("GROUP", "SETTING", "VALUE", "FROM"),
        [(s.group, s.name, s.value or "unset", s.origin) for s in settings.sources],
    )
    print("\nUpstream servers")
    print_table(
        ("NAME", "REACHED", "STATELESS", "CREDENTIALS"),
        [
            (row["name"], row["reached"], "yes" if row["stateless"] else "no", row["credentials"])
            for row in map(_upstream, settings.upstreams)
        ],
        none="none",
    )
    print("\nResults of tools")
    print_table(
        ("TOOL", "MAX TOKENS", "PREVIEW", "TOKENS", "REFERENCES", "SHARED"),
        [
            (
                row["tool"],
                str(row["max_tokens"] or "unlimited"),
                row["preview"],
                str(row["preview_tokens"]),
                "yes" if row["references"] else "no",
                "yes" if row["shared"] else "no",
            )
            for row in _policies(settings)
        ],
    )
    print("\nVersions")
    print_table(("PART", "VERSION"), list(_versions(examination).items()))
    print("\nChecks")
    print_table(("CHECK", "STATUS", "FOUND"), [(f.name, f.status, f.message) for f in findings])
    to_do = [f for f in findings if f.fix]
    if to_do:
        print("\nWhat to do")
        print_table(("CHECK", "FIX"), [(f.name, f.fix) for f in to_do])
    print(f"\n{_summary(findings)}")


def _summary(findings: list[Finding]) -> str:
    faults = sum(f.status == "fault" for f in findings)
    warnings = sum(f.status == "warn" for f in findings)
    if not faults and not warnings:
        return "All checks passed."
    return f"{faults} fault{'s' * (faults != 1)}, {warnings} warning{'s' * (warnings != 1)}."
