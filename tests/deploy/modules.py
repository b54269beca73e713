"""The modules that run inside the engine's processes, and import nothing of CWM."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from cwm import shipped


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, shipped.folder("engine") / f"cwm_engine/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


adapter_keys = load("adapter_keys")
block_chains = load("block_chains")
chunk_seal = load("chunk_seal")
deployment = load("deployment")
held_blocks = load("held_blocks")
loaded_blocks = load("loaded_blocks")
messages_api = load("messages_api")
reuse = load("reuse")
turn_ids = load("turn_ids")
weights = load("weights")
