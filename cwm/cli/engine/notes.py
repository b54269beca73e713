"""What an operator reads above the commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import yaml

from cwm.cli.engine.programs import EnginePrograms

_NETWORK: Final = (
    "vLLM, LMCache, its coordinator and Valkey ask for no password: only gateways may reach them."
)
_ON_GPU: Final = "On a GPU `cwm up`'s commands have run (one H100), this form of them has not."


class _Plain(yaml.SafeDumper):
    """Writes no aliases: programs read them, people do not."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def yaml_of(document: dict[str, Any]) -> str:
    return yaml.dump(document, Dumper=_Plain, sort_keys=False, width=1000)


def comments(engine: EnginePrograms, notes: Sequence[str]) -> str:
    """``notes`` between the title and the warnings, as lines that start with ``#``."""
    title = f"{engine.model.folder} on {engine.plan.device}, written by `cwm engine command`. More in docs/engine.md."
    redis = [
        "`valkey_password` is the password of the Redis of CWM_REDIS_URL, `kv_valkey_url` that URL, each in a file."
    ]
    warnings = [_NETWORK, *([_ON_GPU] if engine.plan.device == "cuda" else [])]
    kind = "cpu" if engine.plan.device == "cpu" else "gpu"
    install = f"Beside vLLM, lmcache and valkey-glide-sync (deploy/engine/requirements-{kind}.txt): pip install ./deploy/engine"
    lines = [title, install, *notes, *(redis if engine.plan.redis else []), *warnings]
    return "".join(f"# {line}\n" for line in lines)


def gateway(engine: EnginePrograms) -> str:
    """The settings of a gateway in front of this engine, as assignments."""
    return " ".join(f"{name}={value}" for name, value in engine.gateway.items())
