"""What Prometheus and Grafana are given: every expression parses and asks for metrics and labels that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.cli.room.metrics import RoomMetrics

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = DEPLOY / "grafana" / "cwm.json"
RULES = DEPLOY / "prometheus" / "rules.yml"
RULES_TEST = DEPLOY / "prometheus" / "rules_test.yml"
OF_PROMETHEUS = {"job", "instance", "exported_instance"}
# As vLLM 0.32.0 and LMCache 0.5.6 name them, with the labels that are used here.
OF_THE_ENGINE = {
    "vllm:num_requests_running": set[str](),
    "vllm:num_requests_waiting": set[str](),
    "vllm:kv_cache_usage_perc": set[str](),
    "vllm:prompt_tokens_by_source_total": {"source"},
    "lmcache_mp_l1_usage_ratio": set[str](),
    "lmcache_mp_l2_store_submitted_objects_chunks_total": set[str](),
    "lmcache_mp_l2_store_completed_objects_chunks_total": set[str](),
    "lmcache_mp_l2_prefetch_failure_chunks_total": {"reason"},
}
RUNBOOK = DEPLOY.parent / "docs" / "runbook.md"
SUFFIXES = {"histogram": ("_bucket", "_count", "_sum")}


def series() -> dict[str, set[str]]:
    """The labels of every series that a gateway can tell, and of the one that Prometheus makes of a scrape."""
    known = {"up": set(OF_PROMETHEUS)}
    for metric in PrometheusMeter().described():
        labels = OF_PROMETHEUS | set(metric.labels)
        for suffix in SUFFIXES.get(metric.type, ("",)):
            known[metric.name + suffix] = labels | ({"le"} if suffix == "_bucket" else set())
    for gauge in RoomMetrics({}).collect():
        known[gauge.name] = OF_PROMETHEUS | {"tier"}
    return known | {name: labels | OF_PROMETHEUS for name, labels in OF_THE_ENGINE.items()}


SERIES = series()


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


RECORDED = {rule["record"] for rule in rules() if "record" in rule}
ALERTS = [rule for rule in rules() if "alert" in rule]


def panels() -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return listed


def expressions() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]
    for panel in panels():
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for annotation in json.loads(DASHBOARD.read_text())["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]


EXPRESSIONS = list(expressions())


def parsed(expression: str) -> Any:
    """Grafana's variables stand for a duration, and for any text between quotes."""
    return promql_parser.parse(expression.replace("$__rate_interval", "5m"))


def selectors(node: Any) -> Iterator[Any]:
    """Every vector selector below a node of the parser's."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "vector_selector", "args"):
        below = getattr(node, name, None)
        for each in below if isinstance(below, list) else [below]:
            if each is not None and not isinstance(each, str | int | float):
                yield from selectors(each)


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS, ids=[title for title, _ in EXPRESSIONS])
def test_an_expression_asks_only_for_series_and_labels_that_there_are(title: str, expression: str) -> None:
    asked = list(selectors(parsed(expression)))
    assert asked
    for each in asked:
        if each.name in RECORDED:
            continue
        assert each.name in SERIES
        assert {matcher.name for matcher in each.matchers.matchers} <= SERIES[each.name]
    by = {
        label.strip() for found in re.findall(r"\bby \(([^)]*)\)", expression) for label in found.split(",")
    }
    assert by <= set().union(*(SERIES.get(each.name, by) for each in asked))


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_says_how_bad_it_is_what_it_is_and_what_to_do(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in {"critical", "warning"}
    assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}


def test_every_alert_leads_to_its_section_of_the_runbook_and_every_section_has_an_alert() -> None:
    headings = re.findall(r"^## (\w+)$", RUNBOOK.read_text(), re.MULTILINE)

    assert sorted(headings) == sorted(alert["alert"] for alert in ALERTS)
    for alert in ALERTS:
        assert alert["annotations"]["runbook_url"] == f"docs/runbook.md#{alert['alert'].lower()}"


def test_what_is_told_of_once_is_there_before_it_happens() -> None:
    """Prometheus sees no increase when a series first appears."""
    text = PrometheusMeter().text()
    for alert in ALERTS:
        for events in re.findall(r'increase\(cwm_events_total\{event=~?"([^"]+)"', alert["expr"]):
            for event in re.sub(r"(\w+)\((\w+)\|(\w+)\)", r"\1\2|\1\3", events).split("|"):
                assert f'cwm_events_total{{event="{event}"}} 0.0' in text


@pytest.mark.parametrize(
    "title",
    [
        "HTTP errors",
        "Tool errors",
        "Errors by code",
        "Events",
        "LMCache: loads that failed",
        "Engines: moves by canary",
        "Engines: answers that went on",
    ],
)
def test_a_panel_of_failures_shows_zero_while_nothing_fails(title: str) -> None:
    (panel,) = [panel for panel in panels() if panel["title"] == title]
    assert all(" or " in target["expr"] for target in panel["targets"])


def test_a_gateway_without_upstreams_has_a_panel_that_says_so() -> None:
    (panel,) = [panel for panel in panels() if panel["title"] == "Upstream servers"]
    assert panel["fieldConfig"]["defaults"]["noValue"] == "none configured"


@pytest.mark.parametrize("part", ["vLLM", "LMCache", "room", "Engines"])
def test_the_engine_has_panels(part: str) -> None:
    assert [panel for panel in panels() if panel["title"].startswith(f"{part}: ")]


def test_every_alert_is_tested() -> None:
    tests = yaml.safe_load(RULES_TEST.read_text())["tests"]
    fired = {
        case["alertname"] for test in tests for case in test.get("alert_rule_test", ()) if case["exp_alerts"]
    }
    assert fired == {alert["alert"] for alert in ALERTS}


def test_the_dashboards_panels_are_apart_and_explained() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    assert (dashboard["uid"], dashboard["title"]) == ("cwm", "CWM")
    ids = [panel["id"] for panel in panels()]
    assert len(ids) == len(set(ids))
    squares = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels())
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(squares) == len(set(squares))
    assert all(x < 24 for x, _ in squares)
    assert all(panel["description"] for panel in panels() if panel["type"] != "row")
