"""Names whose name servers never answer: they take nobody's room but their owner's."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Iterator
from threading import Event, Lock
from typing import Any

import pytest

from cwm.adapters.http.lookups import Lookups
from cwm.adapters.http.sockets import AsyncioBackend
from cwm.adapters.vllm.media import MediaRule
from cwm.domain.errors import InvalidParameterError
from cwm.domain.principal import Principal
from tests.eventually import eventually

ANN, BEN = Principal("acme", "ann"), Principal("bolt", "ben")
_FOUND = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.215.14", 0))]


class NameServer:
    """Stands for the resolver: names that begin with ``silent`` have no answer until it ends."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.end = Event()
        self._lock = Lock()
        self._real = socket.getaddrinfo

    def getaddrinfo(self, host: str, *args: Any, **options: Any) -> Any:
        if options.get("flags"):
            return self._real(host, *args, **options)
        with self._lock:
            self.asked[host] += 1
        if host.startswith("silent"):
            self.end.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return _FOUND


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    server = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", server.getaddrinfo)
    yield server
    server.end.set()


def image(host: str) -> list[dict[str, Any]]:
    part = {"type": "image_url", "image_url": {"url": f"https://{host}/a.png"}}
    return [{"role": "user", "content": [part]}]


async def test_names_without_an_answer_take_the_room_of_their_owner_alone(names: NameServer) -> None:
    rule = MediaRule(lookup_seconds=600)
    silent = [asyncio.create_task(rule.require(image(f"silent{n}.test"), ANN)) for n in range(40)]
    await eventually(lambda: names.asked.total() == 2)

    await rule.require(image("known.test"), BEN)

    assert names.asked == {"silent0.test": 1, "silent1.test": 1, "known.test": 1}
    names.end.set()
    for refusal in await asyncio.gather(*silent, return_exceptions=True):
        assert isinstance(refusal, InvalidParameterError)


async def test_one_tenant_leaves_room_to_the_others_however_many_users_it_has(names: NameServer) -> None:
    rule = MediaRule(lookup_seconds=600)
    silent = [
        asyncio.create_task(rule.require(image(f"silent{n}.test"), Principal("acme", f"user-{n}")))
        for n in range(40)
    ]
    await eventually(lambda: names.asked.total() == 8)
    await rule.require(image("known.test"), BEN)
    assert names.asked.total() == 9
    names.end.set()
    await asyncio.gather(*silent, return_exceptions=True)


async def test_a_lookup_that_its_caller_gave_up_counts_until_the_resolver_ends_it(names: NameServer) -> None:
    lookups = Lookups()
    given_up = asyncio.create_task(lookups.look_up("silent.test", bounds={"ann": 1}))
    await eventually(lambda: names.asked.total() == 1)
    given_up.cancel()
    next_one = asyncio.create_task(lookups.look_up("known.test", bounds={"ann": 1}))
    behind = asyncio.create_task(lookups.look_up("other.test", bounds={"ann": 1}))
    await asyncio.wait({given_up})
    assert not next_one.done()

    names.end.set()

    assert await next_one == await behind == _FOUND


async def test_a_server_whose_name_is_silent_leaves_the_loops_own_lookups_alone(names: NameServer) -> None:
    backend = AsyncioBackend()
    connecting = [asyncio.create_task(backend.connect_tcp("silent.test", 80)) for _ in range(20)]
    await eventually(lambda: names.asked["silent.test"] == 4)
    loop = asyncio.get_running_loop()
    assert await asyncio.wait_for(loop.run_in_executor(None, lambda: "a free thread"), 10)
    assert names.asked.total() == 4
    names.end.set()
    failures = await asyncio.gather(*connecting, return_exceptions=True)
    assert len(failures) == 20
