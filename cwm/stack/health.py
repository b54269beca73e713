"""Checks whether the parts of a local stack answer and are connected to each other."""

from __future__ import annotations

from typing import Any

import httpx2
from redis.asyncio import Redis
from redis.exceptions import RedisError

from cwm.stack.errors import StackError
from cwm.stack.redis_url import RedisAddress

_ASK_SECONDS = 5.0
_WARM_UP_SECONDS = 240.0
WARM_UP_SALT = "cwm-warm-up"
_LOOKED_UP = "lmcache_mp_lookup_requested_tokens_total"


class Health:
    """All checks, over one HTTP client, which ``close`` closes."""

    def __init__(self) -> None:
        # Loopback only: ignore a proxy from the environment.
        self._http = httpx2.AsyncClient(timeout=_ASK_SECONDS, trust_env=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def responds(self, url: str) -> bool:
        try:
            return (await self._http.get(url)).status_code == httpx2.codes.OK
        except httpx2.TransportError:
            return False

    async def json(self, url: str) -> dict[str, Any]:
        """The JSON object at ``url``; empty if there is none."""
        try:
            response = await self._http.get(url)
            document = response.json() if response.status_code == httpx2.codes.OK else {}
        except (httpx2.TransportError, ValueError):
            return {}
        return document if isinstance(document, dict) else {}

    async def vllm_is_attached(self, lmcache_url: str) -> bool:
        status = await self.json(f"{lmcache_url}/status")
        liveness = status.get("worker_liveness") or {}
        return int(liveness.get("tracked_instances") or 0) >= 1

    async def vllm_has_asked(self, lmcache_url: str) -> bool:
        """Whether a lookup has reached this LMCache since it started.

        After LMCache restarts, vLLM's scheduler runs without a cache until its own heartbeat notices, which may be
        later than its workers' heartbeats. No endpoint reports this; only a lookup that arrives proves the connection.
        """
        try:
            text = (await self._http.get(f"{lmcache_url}/metrics")).text
        except httpx2.TransportError:
            return False
        lookups = (line for line in text.splitlines() if line.startswith(_LOOKED_UP))
        return any(float(line.rpartition(" ")[2]) > 0 for line in lookups)

    async def instance_is_registered(self, coordinator_url: str, instance: str) -> bool:
        instances = (await self.json(f"{coordinator_url}/instances")).get("instances") or []
        return any(entry.get("instance_id") == instance for entry in instances)

    async def warm_up(self, vllm_url: str, model: str, chunk_size: int) -> str:
        """Send one completion that stores a chunk; why none is stored, if this engine stores none. Raises StackError.

        It starts the connector's heartbeat: before that, a restart of LMCache would end vLLM.
        """
        body = {
            "model": model,
            "prompt": [5 + index % 40 for index in range(chunk_size + 8)],
            # Also warms up decoding with log-probabilities, which the first thaw's verification uses.
            "max_tokens": 4,
            "logprobs": 5,
            "temperature": 0,
            "cache_salt": WARM_UP_SALT,
            "kv_transfer_params": {"cwm.tell_weights": True},
        }
        try:
            response = await self._http.post(
                f"{vllm_url}/v1/completions", json=body, timeout=_WARM_UP_SECONDS
            )
        except httpx2.TransportError as error:
            raise StackError(f"vLLM did not survive its first request: {error}") from error
        if response.status_code != httpx2.codes.OK:
            raise StackError(f"vLLM refuses a first request: {response.text[:300]}")
        return str((response.json().get("kv_transfer_params") or {}).get("cwm.no_reuse") or "")


async def redis_answers(address: RedisAddress) -> bool:
    """Whether Redis answers PING; False while it loads its data or is down."""
    client = Redis.from_url(address.url(), socket_connect_timeout=_ASK_SECONDS, socket_timeout=_ASK_SECONDS)
    try:
        return bool(await client.ping())
    except (RedisError, OSError):
        return False
    finally:
        await client.aclose()
