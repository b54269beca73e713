"""The port ``ports.kv_tier`` over HTTP to LMCache's server and coordinator."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self

import httpx2

from cwm.adapters import certificates
from cwm.adapters.http.trust import trusted
from cwm.adapters.lmcache.hashes import ALGORITHM, chunk_hashes, kv_ranks
from cwm.adapters.lmcache.neighbours import Neighbours
from cwm.domain.engine import Tier
from cwm.domain.errors import EngineConnectionError, EngineResponseError, EngineTimeoutError
from cwm.domain.figures import count
from cwm.domain.polling import pause_seconds
from cwm.domain.web_origin import is_link_local
from cwm.ports.kv_tier import (
    TIER_OF_ADAPTER,
    AttachedModel,
    KvTierFacts,
    Placement,
    Prefetched,
    PrefixKey,
    TierUsage,
)
from cwm.ports.tracing import NO_SPAN, UNTRACED, Span, Tracer
from cwm.settings import ABSENT, Engine

_DOWN: Final = {"source_tier": "l1", "target_tier": "l2"}  # of deploy/engine/cwm_engine/refill.py
_LOADED: Final = "cwm_loaded"  # of deploy/engine/cwm_engine/load_origins.py
_KEYS: Final = "cwm_keys"  # of deploy/engine/cwm_engine/report_keys.py
_CALL_TIMEOUT_SECONDS: Final = 15.0
_PREFETCH_TIMEOUT_SECONDS: Final = 60.0
_PREFETCH_POLL_SECONDS: Final = 0.003  # LMCache does not signal the end of a prefetch
_PROBE_SALT: Final = "cwm1-doctor"
_PROBE_TOKENS: Final = 8192
_MAX_KEYS_PER_DELETE: Final = 10_000
_PINS_PER_PAGE: Final = 10_000
_PEER: Final = "lmcache"


class LmcacheTier:
    """One coordinator and the LMCache servers registered with it. ``servers``: those beside engines, by the engine's name.

    Connections are pooled. A call that may run twice is repeated once if its connection breaks.
    """

    def __init__(
        self, settings: Engine, tracer: Tracer = UNTRACED, servers: Mapping[str, str] | None = None
    ) -> None:
        self._tracer = tracer
        self._present = settings.has_lmcache
        self._servers = dict(servers or {})
        self._url = settings.lmcache_url
        self._server = self._first()
        self._coordinator = settings.coordinator_url
        self._instance: str | None = None
        self._neighbours = Neighbours(self._servers)
        self._newest_facts: list[KvTierFacts] = []
        """The last facts of any server. Copies of this object share them: chunks and hashes are alike everywhere."""
        self._http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(_CALL_TIMEOUT_SECONDS, connect=settings.connect_timeout_seconds),
            limits=httpx2.Limits(max_connections=64, max_keepalive_connections=16),
            verify=trusted(),
            trust_env=False,
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    @property
    def _last_facts(self) -> KvTierFacts | None:
        return self._newest_facts[-1] if self._newest_facts else None

    async def facts(self) -> KvTierFacts | None:
        if not self._present:
            return None
        servers = dict.fromkeys(server for server in self._servers.values() if server != ABSENT)
        *others, last = servers or (self._server,)
        for server in others:
            with suppress(EngineConnectionError):
                return await self._facts_of(server)
        return await self._facts_of(last)

    async def _facts_of(self, server: str) -> KvTierFacts:
        status, version, adapters, instances = await asyncio.gather(
            self._get(f"{server}/status"),
            self._get(f"{server}/version"),
            self._get(f"{server}/config/adapters"),
            self._instances(),
        )
        attached = {**status.get("cache_context_meta", {}), **status.get("non_cuda_context_meta", {})}
        below = status["storage_manager"].get("l2_adapters", ())
        facts = KvTierFacts(
            version=str(version).partition("-")[0],
            chunk_size=status["chunk_size"],
            hash_algorithm=status["hash_algorithm"],
            attached=tuple(
                AttachedModel(meta["model_name"], meta["world_size"], _block_size(meta))
                for meta in attached.values()
            ),
            adapters=tuple(adapter["type_name"] for adapter in adapters["adapters"]),
            instances=tuple(instance["instance_id"] for instance in instances),
            bare_adapters=tuple(a["type"] for a in below if not a.get("serde_wrapped")),
            keyrings=tuple(tuple(a[_KEYS]) for a in below if _KEYS in a),
        )
        self._newest_facts[:] = [facts]
        return facts

    def configure(self, servers: Mapping[str, str]) -> None:
        """Replace the servers beside engines."""
        self._servers = dict(servers)
        self._neighbours = Neighbours(self._servers)
        self._server = self._first()

    def beside(self, engine: str) -> Self:
        return self._at(self._servers.get(engine, self._server)) if self._servers else self

    def _at(self, server: str) -> Self:
        """The same cache through this server alone."""
        clone = copy.copy(self)
        clone._server, clone._servers = server, {}  # noqa: SLF001 - a copy of itself
        clone._present = self._present and server != ABSENT  # noqa: SLF001
        return clone

    def _first(self) -> str:
        return next((server for server in self._servers.values() if server != ABSENT), self._url)

    async def on(self, instance: str) -> Self:
        instances = {entry["instance_id"]: entry for entry in await self._instances()}
        if instance not in instances:
            raise EngineConnectionError(f"LMCache '{instance}' is not registered with the coordinator.")
        clone = self._at(_node_url(instances[instance]) if len(instances) > 1 else self._server)
        clone._instance = instance  # noqa: SLF001 - a copy of itself
        return clone

    async def registered(self) -> int | None:
        return len(await self._instances()) if self._present else None

    async def coordinator_chunk_size(self) -> int | None:
        """Tokens per chunk in the coordinator, measured by a pin: it only reports the number of chunks in a prefix."""
        probe = PrefixKey("cwm-probe", 1, tuple([0] * _PROBE_TOKENS), _PROBE_SALT)
        chunks = await self.pin(probe)
        await self.unpin(probe)
        return _PROBE_TOKENS // chunks if chunks else None

    async def lookup(self, prefix: PrefixKey) -> list[Placement]:
        if not self._present:
            return []
        answer = await self._post(f"{self._coordinator}/directory/lookup", _body(prefix))
        copies: dict[str, list[dict[str, Any]]] = {}
        for result in answer["results"]:
            copies.setdefault(result["key"]["chunk_hash_hex"], []).extend(result["placements"])
        own = {copy["instance_id"] for each in copies.values() for copy in each if not _is_shared(copy)}
        if self._neighbours.look_for(own):
            await self._neighbours.learn(await self._instances())
        names = self.expected_hashes(prefix) or list(copies)
        return [self._placement(name, copies.get(name, [])) for name in names]

    def _placement(self, name: str, copies: Sequence[Mapping[str, Any]]) -> Placement:
        return Placement(
            name,
            max((count(copy["size_bytes"]) or 0 for copy in copies), default=0),
            frozenset(tier for copy in copies if (tier := _tier(copy)) is not None),
            self._neighbours.of(copy["instance_id"] for copy in copies if not _is_shared(copy)),
        )

    def lower_tiers(self) -> tuple[Tier, ...]:
        return self._last_facts.lower_tiers if self._last_facts is not None else ()

    def expected_hashes(self, prefix: PrefixKey) -> list[str] | None:
        if self._last_facts is None or self._last_facts.hash_algorithm != ALGORITHM:
            return None
        return chunk_hashes(prefix.token_ids, self._last_facts.chunk_size)

    async def pin(self, prefix: PrefixKey) -> int:
        if not self._present:
            return 0
        answer = await self._post(f"{self._coordinator}/cache/pins", _body(prefix), repeat=False)
        return _count(answer["affected"])

    async def unpin(self, prefix: PrefixKey) -> int:
        if not self._present:
            return 0
        answer = await self._call("DELETE", f"{self._coordinator}/cache/pins", _body(prefix), repeat=False)
        return _count(answer["affected"])

    async def pins(self, cache_salt: str) -> dict[str, int]:
        counts: dict[str, int] = {}
        offset, total = 0, 1
        while self._present and offset < total:
            page = await self._get(self._pins_url(cache_salt, offset, _PINS_PER_PAGE))
            total = page["total"]
            offset += _PINS_PER_PAGE
            for pin in page["pins"]:
                name = pin["key"]["chunk_hash_hex"]
                counts[name] = max(counts.get(name, 0), pin["pin_count"])
        return counts

    async def pinned_total(self, cache_salt: str) -> int:
        if not self._present:
            return 0
        page = await self._get(self._pins_url(cache_salt, 0, 1))
        ranks = {pin["key"]["kv_rank"] >> 24 for pin in page["pins"]}
        return int(page["total"]) // int(max([1, *ranks]))

    def _pins_url(self, cache_salt: str, offset: int, limit: int) -> str:
        return f"{self._coordinator}/cache/pins?cache_salt={cache_salt}&offset={offset}&limit={limit}"

    async def prefetch(self, prefix: PrefixKey) -> Prefetched:
        server = self._servers.get(prefix.engine, self._server)
        if not self._present or server == ABSENT:
            return Prefetched(0, 0)
        submitted = await self._post(f"{server}/cache/prefetches", _body(prefix))
        total = _count(submitted["chunks"])
        if submitted["status"] == "noop":
            return Prefetched(0, 0)
        url = f"{server}/cache/prefetches/{submitted['request_id']}"
        # One span for the whole wait, whatever the number of polls.
        with self._tracer.call("prefetch", {"service.peer.name": _PEER, "cwm.chunks.total": total}) as span:
            try:
                async with asyncio.timeout(_PREFETCH_TIMEOUT_SECONDS):
                    result = await self._completed(url, total, span)
            except TimeoutError as error:
                raise EngineTimeoutError(
                    f"LMCache did not finish a prefetch of {total} blocks in {_PREFETCH_TIMEOUT_SECONDS:.0f} s."
                ) from error
            span.note({"cwm.chunks.found": result.found})
            return result

    async def _completed(self, url: str, chunks: int, span: Span) -> Prefetched:
        start = time.monotonic()
        while True:
            answer = _json(await self._exchange("GET", url, None, span, repeat=False))
            if answer["status"] == "completed":
                return _prefetched(answer, chunks)
            await asyncio.sleep(pause_seconds(time.monotonic() - start, _PREFETCH_POLL_SECONDS))

    async def storing(self) -> bool:
        if not self._present:
            return False
        storage = (await self._get(f"{self._server}/status"))["storage_manager"]
        return any(
            controller["pending_keys_count"] or controller["in_flight_task_count"]
            for controller in storage["store_controllers"].values()
        ) or any(l1["write_locked_count"] for l1 in storage["l1_managers"].values())

    async def refill(self, prefix: PrefixKey) -> None:
        server = self._servers.get(prefix.engine, self._server)
        if not self._present or server == ABSENT:
            return
        try:
            await self._post(f"{server}/cache/prefetches", {**_body(prefix), **_DOWN})
        except EngineResponseError as refused:
            # Of stock LMCache, which only loads.
            if refused.context.get("status") != 400:
                raise

    async def drop_l1(self, prefix: PrefixKey) -> None:
        if not self._present:
            return
        for instance in await self._instances():
            selection = {"instance_id": instance["instance_id"], "tier": "l1", "force": False}
            try:
                await self._post(f"{self._coordinator}/cache/delete", {**_body(prefix), **selection})
            except EngineResponseError:
                # The coordinator lists an instance for half a minute after its end.
                if await self._answers(_node_url(instance)):
                    raise

    async def delete(self, prefix: PrefixKey, hashes: Sequence[str]) -> int:
        if not self._present or not hashes:
            return 0
        keys = [
            {
                "chunk_hash_hex": name,
                "model_name": prefix.root,
                "kv_rank": rank,
                "object_group_id": 0,
                "cache_salt": prefix.cache_salt,
            }
            for name in hashes
            for rank in kv_ranks(prefix.world_size)
        ]
        for instance in await self._instances():
            await self._delete_on(_node_url(instance), keys)
        return len(hashes)

    async def usage(self) -> list[TierUsage]:
        if not self._present:
            return []
        answer = await self._get(f"{self._coordinator}/instances/usage")
        modules = [m for instance in answer["instances"] for m in instance["modules"]]
        totals: dict[Tier, tuple[int, int]] = {}
        for module in [*modules, *answer.get("shared_modules", [])]:
            tier = _tier(module)
            if tier is not None:
                total = totals.get(tier, (0, 0))
                totals[tier] = (
                    total[0] + (count(module["used_bytes"]) or 0),
                    total[1] + (count(module["capacity_bytes"]) or 0),
                )
        return [TierUsage(tier, use, capacity or None) for tier, (use, capacity) in totals.items()]

    async def _delete_on(self, node: str, keys: list[dict[str, Any]]) -> None:
        """Delete from L1 and from each adapter by name: without a name LMCache deletes from the first adapter only."""
        adapters = (await self._get(f"{node}/config/adapters"))["adapters"]
        for start in range(0, len(keys), _MAX_KEYS_PER_DELETE):
            batch = keys[start : start + _MAX_KEYS_PER_DELETE]
            await self._call("DELETE", f"{node}/cache/objects", {"keys": batch, "tier": "l1"})
            for adapter in adapters:
                body = {"keys": batch, "tier": "l2", "adapter": adapter["type_name"]}
                await self._call("DELETE", f"{node}/cache/objects", body)

    async def _answers(self, server: str) -> bool:
        with suppress(EngineConnectionError):
            await self._get(f"{server}/status")
            return True
        return False

    async def _instances(self) -> list[dict[str, Any]]:
        instances: list[dict[str, Any]] = (await self._get(f"{self._coordinator}/instances"))["instances"]
        return [i for i in instances if self._instance in {None, i["instance_id"]}]

    async def _get(self, url: str) -> Any:
        return await self._call("GET", url)

    async def _post(self, url: str, body: Mapping[str, Any], *, repeat: bool = True) -> Any:
        return await self._call("POST", url, body, repeat=repeat)

    async def _call(
        self, method: str, url: str, body: Mapping[str, Any] | None = None, *, repeat: bool = True
    ) -> Any:
        return _json(await self._send(method, url, body, repeat=repeat))

    async def _send(
        self, method: str, url: str, body: Mapping[str, Any] | None, *, repeat: bool
    ) -> httpx2.Response:
        if not self._tracer.on:
            return await self._exchange(method, url, body, NO_SPAN, repeat=repeat)
        target = httpx2.URL(url)
        with self._tracer.call(f"{method} {target.path}", _span_attributes(method, target)) as span:
            response = await self._exchange(method, url, body, span, repeat=repeat)
            span.note({"http.response.status_code": response.status_code})
            return response

    async def _exchange(
        self, method: str, url: str, body: Mapping[str, Any] | None, span: Span, *, repeat: bool
    ) -> httpx2.Response:
        try:
            response = await self._http.request(method, url, json=body, headers=dict(span.carrier))
        except httpx2.TimeoutException as error:
            if isinstance(error, httpx2.ConnectTimeout):
                raise _unreachable(url, error) from error
            raise EngineTimeoutError("LMCache did not answer in time.", url=url) from error
        except httpx2.RemoteProtocolError as error:
            if repeat:
                return await self._exchange(method, url, body, span, repeat=False)
            raise _unreachable(url, error) from error
        except httpx2.TransportError as error:
            raise _unreachable(url, error) from error
        if response.is_error:
            raise EngineResponseError(
                f"LMCache answered {response.status_code}: {_detail(response)}",
                url=url,
                status=response.status_code,
            )
        return response


def _prefetched(answer: Mapping[str, Any], chunks: int) -> Prefetched:
    """Convert LMCache's key counts to chunks: each chunk has one key per rank of the engine.

    ``chunks_by_tier`` is None if LMCache reports none, or names an adapter whose tier CWM does not know.
    """
    keys = _count(answer["total_keys"]) // max(1, chunks)
    if not keys:
        raise EngineResponseError("LMCache counts fewer keys of a prefix than it has blocks.")
    chunks_by_tier = None
    if _LOADED in answer and all(name in TIER_OF_ADAPTER for name in answer[_LOADED]):
        chunks_by_tier = {
            TIER_OF_ADAPTER[name]: _count(n) // keys for name, n in answer[_LOADED].items() if n
        }
    return Prefetched(_count(answer["found_keys"]) // keys, chunks, chunks_by_tier)


def _count(value: Any) -> int:
    if (figure := count(value)) is None:
        raise EngineResponseError("LMCache's answer has a figure that is no count.")
    return figure


def _json(response: httpx2.Response) -> Any:
    try:
        return response.json()
    except ValueError as error:
        raise EngineResponseError("LMCache's answer is not JSON.", url=str(response.url)) from error


def _span_attributes(method: str, url: httpx2.URL) -> dict[str, str | int]:
    """Span attributes of a call. They omit the query, which may contain a salt."""
    return {
        "http.request.method": method,
        "server.address": url.host,
        "server.port": url.port or (443 if url.scheme == "https" else 80),
        "url.path": url.path,
        "service.peer.name": _PEER,
    }


def _body(prefix: PrefixKey) -> dict[str, Any]:
    return {
        "model_name": prefix.root,
        "world_size": prefix.world_size,
        "token_ids": prefix.token_ids,
        "cache_salt": prefix.cache_salt,
    }


def _is_shared(placement: Mapping[str, Any]) -> bool:
    """Whether every LMCache server reaches this copy."""
    return placement["tier"] != "l1" and bool(placement.get("shared"))


def _tier(placement: Mapping[str, Any]) -> Tier | None:
    if placement["tier"] == "l1":
        return Tier.CPU
    return TIER_OF_ADAPTER.get(placement["backend"])


def _block_size(meta: Mapping[str, Any]) -> int:
    """Tokens in a block of an attached engine: a CPU engine's are stated once, a GPU engine's for each group of layers."""
    if "block_size" in meta:
        return int(meta["block_size"])
    return max(int(group["tokens_per_block"]) for group in meta["kv_cache_layout"]["kernel_groups"])


def _node_url(instance: Mapping[str, Any]) -> str:
    """The URL that an instance registered. A link-local address is refused: an instance may not aim CWM at one."""
    if is_link_local(str(instance["ip"])):
        raise EngineResponseError("An LMCache server is registered at a link-local address.")
    return f"http://{instance['ip']}:{instance['http_port']}"


def _unreachable(url: str, cause: httpx2.TransportError) -> EngineConnectionError:
    if (fault := certificates.fault(cause)) is not None:
        return EngineConnectionError(
            f"LMCache at {url} {fault}. Check CWM_LMCACHE_URL and CWM_COORDINATOR_URL.",
            url=url,
        )
    return EngineConnectionError(
        f"LMCache does not answer at {url}. Is it running, and are CWM_LMCACHE_URL and "
        "CWM_COORDINATOR_URL right? ('none' for an engine without LMCache)",
        url=url,
    )


def _detail(response: httpx2.Response) -> str:
    try:
        return str(response.json().get("detail", ""))[:300]
    except (ValueError, AttributeError):
        return response.text[:300]
