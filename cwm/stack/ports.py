"""Ports for the parts of the stack: the usual ones where they are free, others where not."""

from __future__ import annotations

import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from cwm.stack.errors import StackError
from cwm.stack.locks import FileLock

LOOPBACK = "127.0.0.1"
_MET_BY_PARTS = {LOOPBACK, "localhost", "", "0.0.0.0", "::"}  # noqa: S104 - compared with
# Neighbours of the usual port, not any free one: those below 32768 are never lent to outgoing connections.
_NEIGHBOURS = 200


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
    """Keeps each chosen port for its part: from others until the part starts, from other stacks to the end.

    vLLM binds its port many seconds after it was started, and again after each crash. In between the port
    looks free; a lock per port tells the stacks of this machine that it is not.
    """

    def __init__(self, locks: Path) -> None:
        self._folder = locks
        self._sockets: dict[str, socket.socket] = {}
        self._locks: list[FileLock] = []
        self.chosen = Ports()

    @classmethod
    def take(
        cls, wanted: Ports, locks: Path, gateway: int | None = None, host: str = LOOPBACK
    ) -> ReservedPorts:
        """Reserve a port for every part; stacks that share the folder ``locks`` never share a port.

        No part of theirs gets ``gateway``, where this stack's gateway is yet to listen on ``host``. Raises StackError
        where another stack keeps that one for itself, and where all neighbours of a port are in use.
        """
        reserved = cls(locks)
        try:
            if gateway:
                reserved._leave(gateway, host)
            chosen = {name: reserved._take_near(name, port) for name, port in wanted.as_dict().items()}
        except BaseException:
            reserved.end()
            raise
        reserved.chosen = Ports(**chosen)
        return reserved

    def release(self, *names: str) -> None:
        """Stop listening on these parts' ports: the parts are about to. Nothing happens the second time."""
        for name in names:
            held = self._sockets.pop(name, None)
            if held is not None:
                held.close()

    def end(self) -> None:
        """Give all ports back."""
        self.release(*self._sockets.copy())
        while self._locks:
            self._locks.pop().release()

    def _leave(self, port: int, host: str) -> None:
        # Gateways at several addresses may have one port; parts are all on the loopback.
        address = FileLock(self._folder / f"{port}-{host}.lock")
        of_parts = FileLock(self._folder / f"{port}.lock", shared=True)
        for lock, whose in ((address, "gateway"), (of_parts, "engine")):
            if lock.take():
                self._locks.append(lock)
            elif lock is address or host in _MET_BY_PARTS:
                raise StackError(
                    f"port {port} is kept for the {whose} of another cwm up (process {lock.holder()}); choose another "
                    "with --port or CWM_PORT."
                )

    def _take_near(self, name: str, usual: int) -> int:
        for port in range(usual, min(usual + _NEIGHBOURS, 65536)):
            lock = FileLock(self._folder / f"{port}.lock")
            if not lock.take():
                continue
            held = _listen(port)
            if held is not None:
                self._locks.append(lock)
                self._sockets[name] = held
                return port
            lock.release()
        raise StackError(f"no port from {usual} to {usual + _NEIGHBOURS - 1} is free for {name}.")


def _listen(port: int) -> socket.socket | None:
    """A listening socket; bound alone would not do, sockets with SO_REUSEADDR may share a bound port."""
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((LOOPBACK, port))
        held.listen(1)
    except OSError:  # in use, or below 1024 without the right
        held.close()
        return None
    return held
