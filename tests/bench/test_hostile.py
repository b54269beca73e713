"""The request of each operation that costs most: how it is made, found and counted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import pytest
from starlette.routing import Route

from cwm.app import assemble
from cwm.settings import ABSENT, Database, Engine, Settings
from cwm.wiring.parts import build_parts
from cwm_bench.hostile.figures import Attack, Waits, section, summary
from cwm_bench.hostile.growth import bodies
from cwm_bench.hostile.operations import routes
from cwm_bench.hostile.run import HostileRun, run

SEED: Final = {"text": "hi", "list": [{"a": 1}], "object": {"b": "c"}}
SIZE: Final = 20_000


def test_each_value_of_a_body_is_grown_to_the_size_and_the_rest_stays() -> None:
    grown = {body.name: body.grown(SIZE) for body in bodies(SEED)}
    assert all(SIZE * 0.6 < len(body) < SIZE * 1.1 for body in grown.values())
    is_deep = re.compile(r" in |digits").search
    flat = {name: json.loads(body) for name, body in grown.items() if not is_deep(name)}
    assert flat[".text: dashes"] == {**SEED, "text": "-" * len(flat[".text: dashes"]["text"])}
    assert flat[".list: its own"]["list"].count({"a": 1}) > SIZE / 20
    assert len(flat[".object: names"]["object"]) > SIZE / 20
    assert {name.split(": ")[1] for name in grown} >= {
        "escaped pairs",
        "lists in lists",
        "objects in objects",
    }


def test_every_method_of_every_route_is_tried(tmp_path: Path) -> None:
    engine = Engine(vllm_url="http://127.0.0.1:9", lmcache_url=ABSENT, coordinator_url=ABSENT)
    settings = Settings(database=Database(db_path=tmp_path / "cwm.db"), engine=engine)
    app = assemble(settings, build_parts(settings))
    tried = {operation.name.split(" ")[1] for operation in routes(app, {"response": "resp_1"})}
    paths = {route.path for route in app.routes if isinstance(route, Route)}
    assert tried == {path.rstrip("/") or "/" for path in paths}
    assert "/v1/responses/resp_1/cancel" in {
        operation.path for operation in routes(app, {"response": "resp_1"})
    }


def attack(waits: Waits, peak_mb: float = 200.0) -> Attack:
    return Attack("GET /", "as it is", 1, 2.0, {"200": 3}, waits, peak_mb)


def test_what_the_other_tenant_waited_and_lost_is_summed_up() -> None:
    attacks = [attack(Waits([50.0, 70.0])), attack(Waits([50.0, 250.0], lost=1), 2_000)]
    assert summary(attacks, 60.0, unrecorded=2) == {
        "routes": 1,
        "worst_wait_ratio": 2.5,
        "median_wait_ratio": 1.75,
        "worst_memory_mb": 2_000,
        "over_goal": 2,
        "lost": 3,
    }
    assert [row[5] for row in section(attacks, 60.0).rows] == [2.5, 1.0]


@pytest.mark.slow
async def test_an_attack_on_a_running_gateway_loses_nothing_of_the_other_tenant(tmp_path: Path) -> None:
    lines: list[str] = []
    report = await run(lines.append, HostileRun(seconds=0.2, only="/v1/models"), tmp_path)
    rows = {row[0]: row for row in report.sections[0].rows}
    assert set(rows) == {"GET /v1/models", "GET /v1/models/{model:path}"}
    assert report.summary["routes"] == len(rows)
    assert report.summary["lost"] == 0
    assert report.summary["worst_memory_mb"] > 50
    assert all(row[3] > 0 and row[6] > 0 for row in rows.values())
