"""The collector's configuration holds together: YAML, known components, pipelines of what there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PARTS = ("receivers", "processors", "exporters")
KNOWN = {
    "receivers": {"otlp": {"protocols"}},
    "processors": {
        "memory_limiter": {"check_interval", "limit_mib", "spike_limit_mib"},
        "batch": {"timeout", "send_batch_size"},
    },
    "exporters": {"debug": {"verbosity"}},
    "extensions": {"health_check": {"endpoint"}},
}


@pytest.fixture(scope="module")
def collector() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "otel" / "collector.yaml").read_text())
    return loaded


def test_every_component_is_one_that_collectors_have_with_fields_that_it_takes(
    collector: dict[str, Any],
) -> None:
    assert collector.keys() == {*KNOWN, "service"}
    for part, known in KNOWN.items():
        for name, fields in collector[part].items():
            assert fields.keys() <= known[name]


def test_pipelines_are_made_of_what_is_configured_and_nothing_is_left_out(collector: dict[str, Any]) -> None:
    pipelines = collector["service"]["pipelines"]
    assert pipelines.keys() == {"traces"}
    for part in PARTS:
        assert set(pipelines["traces"][part]) == set(collector[part])
    assert collector["service"]["extensions"] == list(collector["extensions"])
    assert pipelines["traces"]["processors"][0] == "memory_limiter"
