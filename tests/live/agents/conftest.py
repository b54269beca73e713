"""One engine with a small real model, for agents and for what they need of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.engine import LiveEngine, running


@pytest.fixture(scope="package")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveEngine]:
    with running(tmp_path_factory.mktemp("smollm2"), "smollm2-135m") as engine:
        yield engine
