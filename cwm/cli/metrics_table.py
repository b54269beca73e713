"""The table of metrics in ``docs/metrics.md``, made from the code: ``python -m cwm.cli.metrics_table``."""

from __future__ import annotations

from cwm.adapters.telemetry.described import Described
from cwm.adapters.telemetry.prometheus import PrometheusMeter

_INTRODUCTION = """\
# Metrics

`GET /metrics` tells them in Prometheus' text format; the tool `get_metrics_data` tells an agent the same series without the
buckets of histograms, which would only fill its context.
Every gateway process counts for itself and is one target to scrape: have Prometheus find each replica, not the address in
front of them, and sum over replicas. [Decision 0024](decisions/0024-metrics.md) says why.

```yaml
scrape_configs:
  - job_name: cwm
    dns_sd_configs: [{names: [gateway], type: A, port: 8700}]
```

`deploy/prometheus/prometheus.yml` is a whole configuration, `deploy/prometheus/rules.yml` has recording rules and
alerts with what to do about each, `deploy/grafana/cwm.json` is a dashboard to import.

Counters begin at 0 when a process starts. `cwm_sessions`, `cwm_windows`, `cwm_tier_*` and `cwm_component_up` are
asked for when somebody scrapes, at most every `CWM_METRICS_REFRESH_SECONDS`; a registry so large that counting it takes
long is counted less often, so that it takes no more than a fiftieth of the time. They are of the whole deployment, as each
replica sees it: take `max` or `min` over replicas, not `sum`. What could not be asked has no sample.

## Labels

No label holds a tenant, a session, a window, a path or a name that a caller chose, so the number of series depends
on the gateway and its configuration only.

| label | values |
| --- | --- |
| `face` | `mcp`, `openai` (`/v1`), `http` (the rest) |
| `route` | method and path of a route of ours, such as `POST /v1/completions`; `other` for all else |
| `status` | `2xx` to `5xx`; `left`: the client went before there was an answer |
| `method` | a method of the protocol; `other` for all else |
| `era` | `handshake` (2025-11-25 and earlier), `modern` (2026-07-28) |
| `tool` | a tool of CWM's own; `<upstream>_*` for those of an upstream together; `other` for all else |
| `outcome` of requests | `success`; `refused`: the caller was told no, or an upstream's tool failed; `error`: CWM failed, or what it needs; `cancelled` |
| `operation` | what a service does, `upstream_<name>` for requests to an upstream; at most 128, then `other` |
| `event` | at most 128, then `other` |
| `outcome` of verifications | `exact`, `within_tolerance`, `mismatch`, `skipped` |
| `code` | a code of CWM's errors, such as `CWM-2002`; `other` for all else |
| `phase` | `prefetch` into LMCache's L1, the `engine`'s request, `verify` by replaying the canary |
| `source` | the tier that restored tokens came from, `cached` by the engine in a turn, `computed`, `unknown` |
| `upstream`, `instance` | as configured: an upstream, an LMCache (Prometheus renames it `exported_instance`) |
| `component` | `registry`, `vllm`, `kv_store`, `coordinator`, `shared_store` |

## All of them

"""
_END = """
This page is made from the code by `python -m cwm.cli.metrics_table > docs/metrics.md`.

## Is it well?

`GET /healthz` answers 200 for as long as the process serves, whatever else is down: it is for liveness probes.
`GET /readyz` asks every component at once, each for at most `CWM_CHECK_TIMEOUT_SECONDS`, and answers 200 or, while the registry
or vLLM is down, 503. Its body has the overall `status` and, for each component, `name`, `status`, `message`, `latency_ms`
and, unless it is healthy, `since`:

| component | is | when it is down |
| --- | --- | --- |
| `registry` | Postgres or SQLite | not ready |
| `vllm` | the engine | not ready |
| `kv_store` | LMCache as a whole, and what the watchdog knows of its tiers | degraded: thaws compute again, freezes fail |
| `coordinator` | LMCache's coordinator | degraded, as above |
| `shared_store` | the Redis or Valkey that gateways share, where there is one | degraded: agent sessions and shared context fail |
| `upstream:<name>` | an upstream MCP server | degraded: its tools are missing |
"""


def page() -> str:
    """The whole page, Markdown."""
    head = "| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n"
    return _INTRODUCTION + head + "".join(map(_row, PrometheusMeter().described())) + _END


def _row(metric: Described) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.type} | {labels} | {metric.help_text.rstrip('.')} |\n"


if __name__ == "__main__":
    print(page(), end="")
