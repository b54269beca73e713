"""One engine of a local stack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cwm.stack.commands import Commands
from cwm.stack.plan import StackPlan
from cwm.stack.ports import LOOPBACK, ReservedPorts


@dataclass(frozen=True, slots=True)
class StackEngine:
    """One vLLM with its own LMCache server."""

    commands: Commands
    reserved: ReservedPorts

    @property
    def plan(self) -> StackPlan:
        return self.commands.plan

    @property
    def name(self) -> str:
        """Its name among several engines."""
        return f"engine-{self.plan.number}"

    @property
    def vllm_url(self) -> str:
        return f"http://{LOOPBACK}:{self.commands.ports.vllm}"

    @property
    def lmcache_url(self) -> str:
        return f"http://{LOOPBACK}:{self.commands.ports.lmcache}"

    @property
    def model_name(self) -> str:
        return self.commands.served_name

    @property
    def model_root(self) -> str:
        return str(self.commands.model.folder)

    def described(self) -> dict[str, Any]:
        """What the run file says of it."""
        urls = {"vllm": self.vllm_url, "lmcache": self.lmcache_url}
        return {"model": self.model_root, "urls": urls, "ports": self.commands.ports.as_dict()}
