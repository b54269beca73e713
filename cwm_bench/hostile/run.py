"""``cwm bench faults --hostile``: the request of each operation that costs most, beside the turns of another tenant."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from cwm import __version__
from cwm_bench.harness.figures import Report, median
from cwm_bench.harness.folder import own_folder
from cwm_bench.harness.mcp_client import mcp_client
from cwm_bench.hostile import figures
from cwm_bench.hostile.figures import Attack
from cwm_bench.hostile.gateway import ATTACKER, VICTIM, Owner, Target, owner, under_attack
from cwm_bench.hostile.operations import Operation, routes, tools
from cwm_bench.hostile.probes import Probe, Probes
from cwm_bench.hostile.victim import Victim

_CONNECTIONS: Final = 4
_PRINCIPALS: Final = 8
_ALONE_SECONDS: Final = 4.0
_ALONE_EVERY: Final = 20
_PROBE_TIMEOUT_SECONDS: Final = 120.0
# What these are belongs to one principal, and is read by nobody else.
_PERSONAL: Final = ("response", "conversation", "item")


@dataclass(frozen=True, slots=True)
class HostileRun:
    """``seconds`` of each attack; ``only``: operations whose names contain this."""

    seconds: float = 2.5
    only: str = ""


async def run(progress: Callable[[str], None], extent: HostileRun, home: Path) -> Report:
    """Measure in front of an engine that answers at once: the claim is about the gateway."""
    async with own_folder(home, progress) as folder, under_attack(folder) as target:
        progress("storing the largest objects that the gateway takes")
        first = await owner(target)
        every = [*routes(target.app, first.names), *await _listed(target, first.names)]
        operations = [operation for operation in every if extent.only in operation.name]
        victim, attacks = Victim(target), list[Attack]()
        alone = [await victim.alone(_ALONE_SECONDS)]
        for number, operation in enumerate(operations, 1):
            try:
                attack = await _attacked(target, victim, operation, first, folder, extent.seconds)
            except FileNotFoundError as error:
                # Its process has no entry any more.
                raise RuntimeError(f"the gateway ended under {operation.name}") from error
            attacks.append(attack)
            progress(
                f"{number} of {len(operations)}: {operation.name}, {attack.request}: turns of {attack.waits.mean:.0f} ms, {attack.peak_mb:.0f} MB"
            )
            if number % _ALONE_EVERY == 0:
                alone.append(await victim.alone(_ALONE_SECONDS))
        unrecorded = victim.answered - target.recorded_turns(VICTIM)
    wait = median(alone)
    context = {"cwm": __version__, "cores": os.cpu_count(), "alone_ms": wait, "connections": _CONNECTIONS}
    return Report(
        "hostile", context, [figures.section(attacks, wait)], figures.summary(attacks, wait, unrecorded)
    )


async def _listed(target: Target, names: Mapping[str, str]) -> list[Operation]:
    """Tools and resources, as the gateway lists them to the attacker."""
    token = target.headers(ATTACKER)["authorization"].removeprefix("Bearer ")
    async with mcp_client(f"{target.url}/mcp", auth=token) as client:
        return await tools(client, names)


async def _attacked(
    target: Target, victim: Victim, operation: Operation, first: Owner, folder: Path, seconds: float
) -> Attack:
    """Find the operation's worst request, and send it while the other tenant works."""
    owned = None
    if any(first.names[each] in operation.path for each in _PERSONAL):
        owned = await owner(target)
        path = operation.path
        for each in _PERSONAL:
            path = path.replace(first.names[each], owned.names[each])
        operation = replace(operation, path=path)
    target.forget_peak()
    async with httpx2.AsyncClient(trust_env=False, timeout=_PROBE_TIMEOUT_SECONDS) as http:
        probes = Probes(target, operation, owned, http)
        worst = await probes.worst()
    senders = [probes.headers() for _ in range(1 if owned else _PRINCIPALS)]
    attacker = asyncio.create_task(_repeated(target, operation, worst, senders, folder / "body", seconds))
    waits = await victim.turns(attacker)
    size = len(worst.body) + len(worst.target)
    return Attack(operation.name, worst.name, size, worst.cpu_ms, await attacker, waits, target.peak_mb())


async def _repeated(
    target: Target,
    operation: Operation,
    probe: Probe,
    senders: list[dict[str, str]],
    body: Path,
    seconds: float,
) -> dict[str, int]:
    """Send the request again and again from a process of its own; answers by status."""
    await asyncio.to_thread(body.write_bytes, probe.body)
    address = urlsplit(target.url)
    order: dict[str, Any] = {
        "host": address.hostname,
        "port": address.port,
        "method": operation.method,
        "target": probe.target,
        "headers": senders,
        "body": str(body),
        "connections": _CONNECTIONS,
        "seconds": seconds,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "cwm_bench.hostile.attacker",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate(json.dumps(order).encode())
    answers: dict[str, int] = json.loads(output)
    return answers
