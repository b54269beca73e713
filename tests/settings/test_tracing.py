"""Where traces go, as the settings say it."""

from __future__ import annotations

import pytest

from cwm.settings import SettingsError, Tracing, load


@pytest.mark.parametrize(
    "endpoint",
    ["http://otel:4318", "http://otel:4318/", "http://otel:4318/v1/traces", "http://otel:4318/v1/traces/"],
)
def test_spans_go_below_the_endpoint(endpoint: str) -> None:
    assert Tracing(otlp_endpoint=endpoint).traces_url() == "http://otel:4318/v1/traces"


def test_headers_are_pairs_and_a_value_may_hold_anything_but_a_comma() -> None:
    given = load({"CWM_OTLP_HEADERS": "authorization=Basic dXNlcjo=, x-scope = team,"}).tracing
    assert given.headers() == {"authorization": "Basic dXNlcjo=", "x-scope": "team"}


def test_headers_are_secret() -> None:
    given = load({"CWM_OTLP_HEADERS": "authorization=hidden"})
    assert "hidden" not in repr(given.tracing)
    assert all("hidden" not in source.value for source in given.sources)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CWM_OTLP_ENDPOINT", "otel:4318"),
        ("CWM_OTLP_HEADERS", "hidden"),
        ("CWM_OTLP_HEADERS", "=hidden"),
        ("CWM_TRACE_SAMPLE_RATIO", "1.5"),
        ("CWM_SERVICE_NAME", " "),
        ("CWM_TRACE_URL", "https://traces.test/trace"),
        ("CWM_TRACE_URL", "https://traces.test/{trace_id}/{trace_id}"),
        ("CWM_TRACE_URL", "javascript:alert('{trace_id}')"),
        ("CWM_TRACE_URL", "traces.test/{trace_id}"),
        ("CWM_TRACE_URL", "https://user:hidden@traces.test/{trace_id}"),
        ("CWM_TRACE_URL", "https://traces.test/ {trace_id}"),
    ],
)
def test_what_is_none_is_refused_by_name_and_not_repeated(variable: str, value: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load({variable: value})
    assert variable in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_without_an_endpoint_there_is_none() -> None:
    assert load({}).tracing.otlp_endpoint is None
    assert load({"CWM_OTLP_ENDPOINT": ""}).tracing.otlp_endpoint is None
    assert load({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://otel:4318"}).tracing.otlp_endpoint is None
