"""The proof where users need it: in bfloat16, beside other requests, with wrong KV planted above its seal."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from cwm_bench.harness.gateway import QUIET
from cwm_bench.proof.faults import Planted
from cwm_bench.proof.figures import Thawed, summary
from cwm_bench.proof.parts import Company, Layout
from cwm_bench.proof.run import Scope, cells
from tests.live.conftest import LiveGateway, served
from tests.live.engine import LiveEngine, running

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

_CASES = len(Planted)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveEngine]:
    with running(tmp_path_factory.mktemp("proof"), "smollm2-135m", dtype="bfloat16") as started:
        yield started


@pytest.fixture(scope="module")
def front(engine: LiveEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveGateway]:
    with served(engine, tmp_path_factory.mktemp("gateway") / "cwm.db", "acme", **QUIET) as gateway:
        yield gateway


async def test_beside_streams_wrong_kv_is_found_and_right_kv_is_left_alone(
    engine: LiveEngine, front: LiveGateway
) -> None:
    thaws: list[Thawed] = []
    async with cells(engine, front.url, Layout.FULL, "bfloat16", Random(3), print) as ladder:
        scope = Scope(_CASES, [Layout.FULL], ["bfloat16"], [Company.STREAMS])
        thaws += await ladder.thaws(Company.STREAMS, scope)
    figures = summary(thaws, [])
    assert figures["planted"]["bfloat16"] == _CASES
    assert figures["missed_bfloat16"] == 0
    assert (figures["condemned_right"], figures["others_touched"]) == (0, 0)
    right = [thaw.verification for thaw in thaws if thaw.planted is None]
    assert set(right) <= {"exact", "within_noise"}
