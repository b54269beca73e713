"""Tests what CWM needs of vLLM with a few small requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from cwm.domain.errors import CwmError, EngineResponseError, InvalidParameterError
from cwm.domain.prefix import TokenIds
from cwm.ports.engine import Completion, Engine, Generation, ServedModel
from cwm.services.health.findings import Findings

PROBE_SALT: Final = "cwm1-doctor"
OTHER_SALT: Final = "cwm1-doctor-other"
ENGINE_CHECKS: Final = (
    "token ids",
    "cached tokens",
    "isolation",
    "identity",
    "weights",
    "control tokens",
    "tools",
    "aborts",
)

_MESSAGES: Final = ({"role": "user", "content": "?"},)
_TOOLS: Final = (
    {"type": "function", "function": {"name": "probe", "parameters": {"type": "object", "properties": {}}}},
)
_PINNED = "Use the vLLM version that CWM pins (deploy/engine/requirements-cpu.txt)."


@dataclass(slots=True)
class EngineExamination:
    """Sends one random prompt twice under one salt and once under another.

    ``weights_digest`` is what the settings say of the weights; None for an engine without LMCache.
    ``sent``: (token ids, salt) of all prompts whose chunks may have been stored. ``no_reuse``: why the engine neither stores nor loads KV,
    as it says in its answers; empty where it does.
    """

    findings: Findings
    engine: Engine
    served: ServedModel
    chunk_size: int
    weights_digest: str | None
    sent: list[tuple[TokenIds, str]] = field(default_factory=list)
    no_reuse: str = ""

    async def examine(self) -> TokenIds | None:
        """Run the checks; returns the prompt, of two chunks or more if the model allows it, or None if vLLM fails on it."""
        count = min(2 * self.chunk_size + 8, self.served.max_model_len - 8)
        try:
            probe = await probe_ids(self.engine, self.served, count)
            first = await self._complete(probe, PROBE_SALT)
            second = await self._complete(probe, PROBE_SALT)
            other = await self._complete(probe, OTHER_SALT)
        except EngineResponseError as error:
            fix = f"Serve one model that answers /v1/completions with return_token_ids. {_PINNED}"
            self.findings.fault("token ids", error.message, fix)
            self.findings.skipped("vLLM does not answer a probe", *ENGINE_CHECKS[1:])
            return None
        except CwmError as error:
            self.findings.fault("token ids", error.message, "See vLLM's log.")
            self.findings.skipped("vLLM does not answer a probe", *ENGINE_CHECKS[1:])
            return None
        self.no_reuse = first.no_reuse
        self._token_ids(first)
        self._cached_tokens(second)
        self._isolation(other)
        self._identity(first)
        self._weights(first)
        await self._control_tokens()
        await self._tools()
        await self._aborts()
        return probe

    async def _complete(self, probe: TokenIds, salt: str) -> Completion:
        self.sent.append((probe, salt))
        return await self.engine.complete(
            Generation(self.served.id, probe, salt, max_tokens=2, sampling={"temperature": 0})
        )

    def _token_ids(self, answer: Completion) -> None:
        if answer.token_ids:
            self.findings.ok("token ids", "vLLM returns the exact ids it computed")
        else:
            self.findings.fault("token ids", "vLLM returns no token ids for return_token_ids.", _PINNED)

    def _cached_tokens(self, second: Completion) -> None:
        if second.cached_tokens:
            self.findings.ok("cached tokens", f"reported: {second.cached_tokens} of {second.prompt_tokens}")
        elif self.no_reuse:
            self.findings.skipped("no KV is reused", "cached tokens")
        else:
            self.findings.fault(
                "cached tokens",
                "vLLM reports no cached token for a prompt that it has just computed.",
                "Start vLLM with --enable-prompt-tokens-details, and without --no-enable-prefix-caching.",
            )

    def _isolation(self, other: Completion) -> None:
        if other.cached_tokens == 0:
            self.findings.ok("isolation", "another cache_salt finds nothing")
        else:
            self.findings.fault(
                "isolation",
                f"{other.cached_tokens} tokens were reused under another cache_salt: tenants are not separated.",
                _PINNED,
            )

    def _identity(self, answer: Completion) -> None:
        if answer.fingerprint:
            self.findings.ok("identity", f"{answer.fingerprint}, {self.served.root}")
        else:
            self.findings.warn(
                "identity",
                "vLLM sends no system_fingerprint: a changed dtype or block size would go unnoticed.",
                _PINNED,
            )

    def _weights(self, answer: Completion) -> None:
        if answer.weights:
            self.findings.ok("weights", f"vLLM loaded {answer.weights}; KV of others is never used")
        elif self.weights_digest is None:
            self.findings.ok("weights", "no KV is stored outside vLLM")
        elif self.weights_digest:
            self.findings.ok("weights", f"CWM_WEIGHTS_DIGEST says {self.weights_digest}")
        else:
            self.findings.warn(
                "weights",
                "vLLM does not report which weights it loaded: whenever it starts again, all stored KV is computed again.",
                'Install cwm-engine beside vLLM, with "kv_connector_module_path":"cwm_engine.connector" in --kv-transfer-config; '
                "or set CWM_WEIGHTS_DIGEST and change it with the weights.",
            )

    async def _control_tokens(self) -> None:
        try:
            control_tokens = await self.engine.special_tokens(self.served.id)
        except CwmError as error:
            self.findings.warn("control tokens", error.message, "See vLLM's log.")
            return
        if control_tokens:
            self.findings.ok(
                "control tokens", f"{len(control_tokens)} known; text that forges them is refused"
            )
        else:
            self.findings.warn(
                "control tokens",
                "vLLM does not report the model's control tokens: user text can forge a turn.",
                "Start vLLM with --enable-tokenizer-info-endpoint.",
            )

    async def _tools(self) -> None:
        """Nothing is computed: vLLM only renders the chats."""
        model = self.served.id
        try:
            tested = await self.engine.require_tools(model, _TOOLS)
            without = await self.engine.render(model, _MESSAGES)
            reads_tools = await self.engine.render(model, _MESSAGES, options={"tools": _TOOLS}) != without
        except InvalidParameterError as refusal:
            self.findings.warn(
                "tools",
                f"Agents that use tools will be refused: {refusal.message}",
                "Start vLLM with `python -m cwm_engine.serve_vllm`, or with --enable-auto-tool-choice and the --tool-call-parser "
                "of the model. For `cwm up`, CWM_TOOL_PARSER names a parser.",
            )
        except CwmError as error:
            self.findings.warn("tools", error.message, "See vLLM's log.")
        else:
            if not tested:
                self.findings.skipped("vLLM runs without --enable-scale-out", "tools")
            elif reads_tools:
                self.findings.ok("tools", "agents that use tools are served")
            else:
                self.findings.ok(
                    "tools", "agents that use tools are served; this chat template never shows the model any"
                )

    async def _aborts(self) -> None:
        """Abort a request that does not exist."""
        try:
            aborted = await self.engine.abort([f"{PROBE_SALT}-none"])
        except CwmError as error:
            self.findings.warn("aborts", error.message, "See vLLM's log.")
            return
        if aborted:
            self.findings.ok("aborts", "vLLM ends requests whose caller has gone")
        else:
            self.findings.warn(
                "aborts",
                "vLLM refuses to abort requests: it generates to the end for callers that have gone.",
                "Start vLLM with --enable-scale-out.",
            )


async def probe_ids(engine: Engine, model: ServedModel, count: int) -> TokenIds:
    """``count`` token ids that start with random text, so that no cache has them."""
    text = f"{uuid4().hex} is what the doctor of CWM says. "
    ids = await engine.tokenize(model.id, text, add_special_tokens=False)
    return (ids * (count // len(ids) + 1))[:count]
