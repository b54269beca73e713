"""Generates ``docs/metrics.md`` from the code: ``python -m cwm.cli.metrics_table``."""

from __future__ import annotations

from cwm.adapters.telemetry.described import Described
from cwm.adapters.telemetry.prometheus import PrometheusMeter

_INTRODUCTION = """\
# Metrics

`GET /metrics` returns all metrics in Prometheus' text format. The tool `get_metrics_data` returns the same series to an agent,
without histogram buckets, which would only fill its context.
Every gateway process counts for itself and is a scrape target of its own: let Prometheus discover each replica, not the address
in front of them, and sum over replicas. [Decision 0024](decisions/0024-metrics.md) says why.

```yaml
scrape_configs:
  - job_name: cwm
    dns_sd_configs: [{names: [gateway], type: A, port: 8700}]
```

`deploy/prometheus/prometheus.yml` is a complete configuration, `deploy/prometheus/rules.yml` has recording rules and
alerts with a section of [the runbook](runbook.md) for each, `deploy/grafana/cwm.json` is a dashboard to import.

Counters start at 0 with the process. `cwm_sessions`, `cwm_windows`, `cwm_tier_*` and `cwm_component_up` are refreshed by
scrapes, at most every `CWM_METRICS_REFRESH_SECONDS`; a registry that takes long to count is counted less often, so that
counting takes at most a fiftieth of the time. They describe the whole deployment as each replica sees it: take `max` or
`min` over replicas, not `sum`. A value that could not be determined has no sample.

## Labels

No label contains a tenant, a session, a window, a path or a name that a caller chose, so the number of series depends
only on the gateway and its configuration.

| label | values |
| --- | --- |
| `face` | `mcp`, `openai` (`/v1`), `http` (the rest) |
| `route` | method and path of one of the gateway's routes, such as `POST /v1/completions`; `other` for everything else |
| `status` | `2xx` to `5xx`; `left`: the client disconnected before the response |
| `method` | a method of the protocol; `other` for everything else |
| `era` | `handshake` (2025-11-25 and earlier), `modern` (2026-07-28) |
| `tool` | one of CWM's own tools; `<upstream>_*` for all tools of an upstream together; `other` for everything else |
| `outcome` of requests | `success`; `refused`: the request was refused, or an upstream's tool failed; `error`: CWM failed, or something it depends on; `cancelled` |
| `operation` | what a service does, `upstream_<name>` for requests to an upstream; at most 128 values, then `other` |
| `event` | at most 128 values, then `other` |
| `outcome` of verifications | `exact`, `within_tolerance`, `mismatch`, `skipped` |
| `code` | one of CWM's error codes, such as `CWM-2002`; `other` for everything else |
| `phase` | `prefetch` into LMCache's L1, the `engine`'s request, `verify` by replaying the canary |
| `source` | the tier from which tokens were restored, `cached` by the engine in a turn, `computed`, `unknown` |
| `upstream`, `instance` | as configured: an upstream, an LMCache (Prometheus renames it `exported_instance`) |
| `component` | `registry`, `vllm`, `kv_store`, `coordinator`, `shared_store` |

## All metrics

"""
_END = """
This page is generated from the code by `python -m cwm.cli.metrics_table > docs/metrics.md`.

## Health checks

`GET /healthz` returns 200 as long as the process serves requests, whatever else is down: use it for liveness probes.
`GET /readyz` checks all components concurrently, each for at most `CWM_CHECK_TIMEOUT_SECONDS`, and returns 200, or 503 while
the registry or vLLM is down. Its body has the overall `status` and, for each component, `name`, `status`, `message`,
`latency_ms` and, unless it is healthy, `since`:

| component | is | when it is down |
| --- | --- | --- |
| `registry` | Postgres or SQLite | not ready |
| `vllm` | the engine | not ready |
| `kv_store` | LMCache as a whole, and the watchdog's view of its tiers | degraded: thaws recompute, freezes fail |
| `coordinator` | LMCache's coordinator | degraded, as above |
| `shared_store` | the Redis or Valkey that gateways share, if there is one | degraded: agent sessions and shared context fail |
| `upstream:<name>` | an upstream MCP server | degraded: its tools are missing |
"""


def page() -> str:
    """The whole page as Markdown."""
    head = "| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n"
    return _INTRODUCTION + head + "".join(map(_row, PrometheusMeter().described())) + _END


def _row(metric: Described) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.type} | {labels} | {metric.help_text.rstrip('.')} |\n"


if __name__ == "__main__":
    print(page(), end="")
