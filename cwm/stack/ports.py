"""Ports for the parts of the stack: the usual ones where they are free, others where not."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Ports:
    """One port of each listener; the defaults are the ones people know."""

    vllm: int = 8000
    lmcache: int = 8081
    lmcache_queue: int = 5555
    lmcache_metrics: int = 9091
    coordinator: int = 9300
    valkey: int = 6390

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class ReservedPorts:
    """Holds a listening socket on each chosen port until its part is about to bind it itself.

    Listening, not only bound: two sockets with SO_REUSEADDR may share a bound port, but not a listening one.
    """

    def __init__(self, sockets: Mapping[str, socket.socket]) -> None:
        self._sockets = dict(sockets)
        self.chosen = Ports(**{name: held.getsockname()[1] for name, held in sockets.items()})

    @classmethod
    def take(cls, wanted: Ports) -> Self:
        return cls({name: _listen(port) for name, port in wanted.as_dict().items()})

    def release(self, *names: str) -> None:
        for name in names or tuple(self._sockets):
            held = self._sockets.pop(name, None)
            if held is not None:
                held.close()


def _listen(port: int) -> socket.socket:
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((LOOPBACK, port))
        held.listen(1)
    except OSError:  # in use, or below 1024 without the right
        held.close()
        if port == 0:
            raise
        return _listen(0)
    return held
