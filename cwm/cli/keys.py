"""``cwm keys …``: API keys for machines that cannot sign in."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from cwm.cli.terminal.console import (
    USAGE,
    Interrupts,
    JsonOption,
    end_with_json,
    fail,
    load_settings,
    print_json,
    print_table,
    run_to_end,
)
from cwm.cli.terminal.output import OutputError

if TYPE_CHECKING:
    from cwm.domain.access import AccessScope
    from cwm.domain.api_key import ApiKey
    from cwm.services.access.machine_keys import MachineKeys

T = TypeVar("T")

_AGENT: Final = "agent"

app = typer.Typer(
    no_args_is_help=True,
    help="Create, list and revoke API keys, in the gateway's database (CWM_DATABASE_URL or CWM_DB_PATH). "
    "A gateway accepts them with CWM_API_KEYS=true.",
)

TenantOption = Annotated[
    str | None, typer.Option("--tenant", help="Tenant of the key; default: CWM_TENANT.", metavar="TENANT")
]


@app.command()
def create(
    name: Annotated[
        str,
        typer.Argument(help="The machine's name: all keys of one name are one principal.", metavar="NAME"),
    ],
    scope: Annotated[
        list[str],
        typer.Option(
            "--scope",
            help="What the key may do: agent for all that a coding agent needs, or single scopes, such as windows:read, "
            "context:* or admin; repeat for several.",
            metavar="SCOPE",
        ),
    ],
    workspace: Annotated[
        list[str] | None,
        typer.Option(
            "--workspace", help="A workspace that the key is a member of; repeat for several.", metavar="NAME"
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=0, max=3650, help="Days until it expires; 0 for never.")] = 90,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a key and print it: it is shown only now and stored only as a digest."""
    from cwm.domain.access import spelled

    scopes, lasting = _scopes(scope), timedelta(days=days) if days else None
    workspaces = frozenset(workspace or ())
    key, text = _with_keys(tenant, lambda keys, mine: keys.create(mine, name, scopes, lasting, workspaces))
    try:
        if as_json:
            print_json({**_document(key), "api_key": text})
        else:
            print(text)
        sys.stdout.flush()
    except (OutputError, BrokenPipeError):
        fail(
            "CWM-4001",
            f"Standard output cannot be written: key {key.key_id} of tenant {key.tenant} was created and cannot be shown. "
            f"Revoke it (`cwm keys revoke {key.key_id}`).",
        )
    if as_json:
        return
    print(
        f"Key {key.key_id} of {key.name} in tenant {key.tenant} may {', '.join(spelled(scopes))}. "
        f"{_ending(key)} It is not shown again.",
        file=sys.stderr,
    )


@app.command("list")
def list_keys(tenant: TenantOption = None, as_json: JsonOption = False) -> None:
    """List the keys of a tenant, newest first, including revoked and expired ones."""
    keys = _with_keys(tenant, lambda keys, mine: keys.listed(mine))
    end_with_json({"keys": [_document(key) for key in keys]}, as_json=as_json)
    print_table(
        ("ID", "NAME", "STATE", "SCOPES", "WORKSPACES", "CREATED", "EXPIRES", "LAST USED"),
        [
            (
                key.key_id,
                key.name,
                _state(key),
                " ".join(_document(key)["scopes"]),
                " ".join(sorted(key.workspaces)),
                f"{key.created_at:%Y-%m-%d}",
                f"{key.expires_at:%Y-%m-%d}" if key.expires_at else "never",
                f"{key.last_used_at:%Y-%m-%d %H:%M}" if key.last_used_at else "not recorded",
            )
            for key in keys
        ],
        none="There are no keys.",
    )


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="The key's id, as `cwm keys list` shows it.", metavar="ID")],
    tenant: TenantOption = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke a key: every gateway on this database refuses it from now on."""
    key = _with_keys(tenant, lambda keys, mine: keys.revoke(mine, key_id))
    end_with_json(_document(key), as_json=as_json)
    print(f"Revoked {key.key_id} of {key.name}.")


def _with_keys(tenant: str | None, work: Callable[[MachineKeys, str], Awaitable[T]]) -> T:
    settings = load_settings(upstreams=False, tenant=tenant)

    async def run(_: Interrupts) -> T:
        from cwm.wiring.access import opened_keys

        async with opened_keys(settings) as keys:
            return await work(keys, settings.isolation.tenant)

    return run_to_end(run)


def _scopes(names: list[str]) -> frozenset[AccessScope]:
    from cwm.domain.access import OF_AN_AGENT, AccessScope, granted

    if _AGENT in names:
        return OF_AN_AGENT | _scopes([name for name in names if name != _AGENT])
    for name in names:
        if not granted([name]):
            scopes = ", ".join(AccessScope)
            fail(
                "CWM-1003",
                f"There is no scope {name[:64]}; the scopes are {scopes}, <noun>:* for all scopes of a noun, and agent for all that an agent needs.",
                USAGE,
            )
    return granted(names)


def _document(key: ApiKey) -> dict[str, Any]:
    from cwm.domain.access import spelled

    return {
        "key_id": key.key_id,
        "name": key.name,
        "tenant": key.tenant,
        "state": _state(key),
        "scopes": spelled(key.scopes),
        "workspaces": sorted(key.workspaces),
        "created_at": key.created_at.isoformat(),
        "expires_at": key.expires_at and key.expires_at.isoformat(),
        "revoked_at": key.revoked_at and key.revoked_at.isoformat(),
        "last_used_at": key.last_used_at and key.last_used_at.isoformat(),
    }


def _state(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "good" if key.is_good(datetime.now(UTC)) else "expired"


def _ending(key: ApiKey) -> str:
    return "It never expires." if key.expires_at is None else f"It expires on {key.expires_at:%Y-%m-%d}."
