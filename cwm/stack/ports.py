"""Chooses a port for each part of the stack: its usual port if that is free, otherwise one near it."""

from __future__ import annotations

import os
import socket
import stat
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cwm.stack.errors import StackError
from cwm.stack.locks import FileLock

LOOPBACK = "127.0.0.1"
_LOCKS = Path("/tmp")  # noqa: S108 - not TMPDIR, which may differ between stacks; the folder must be this user's own
_HOSTS_WITH_LOOPBACK = {LOOPBACK, "localhost", "", "0.0.0.0", "::"}  # noqa: S104 - compared with
# Neighbours of the usual port: below 32768 the kernel gives none of them to an outgoing connection.
_NEIGHBOURS = 200
_OF_ALL = ("coordinator", "valkey")


@dataclass(frozen=True, slots=True)
class Ports:
    """The port of each listener; the defaults are the programs' usual ports."""

    vllm: int = 8000
    lmcache: int = 8081
    lmcache_queue: int = 5555
    lmcache_metrics: int = 9091
    coordinator: int = 9300
    valkey: int = 6390
    """These two serve all engines of a stack."""

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class PortLostError(StackError):
    """Another program took a reserved port while its part was being started."""


def machine_locks(home: Path) -> Path:
    """The folder with the locks of all stacks of this user; in ``home`` if that folder is not this user's."""
    folder = _LOCKS / f"cwm-ports-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        state = folder.lstat()
    except OSError:
        return home / "run" / "ports"
    is_own = stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid()
    return folder if is_own else home / "run" / "ports"


class ReservedPorts:
    """Reserves each chosen port: against other programs until its part starts, against other stacks until the end.

    vLLM binds its port many seconds after it is started, and again after each crash. In between the port
    looks free; a lock file per port tells the stacks of this machine that it is taken.
    """

    def __init__(self, locks: Path) -> None:
        self._folder = locks
        self._sockets: dict[str, socket.socket] = {}
        self._locks: list[FileLock] = []
        self.chosen = Ports()

    @classmethod
    def take(
        cls,
        wishes: Ports,
        locks: Path,
        gateway: int | None = None,
        host: str = LOOPBACK,
        first: Ports | None = None,
    ) -> ReservedPorts:
        """Reserve a port for every part. Stacks that share the folder ``locks`` never share a port.

        ``first``: the ports of the stack's first engine, for another engine, which has the same Valkey and coordinator. ``gateway`` is the port on which this stack's gateway is going to listen on ``host``; no part of any stack gets
        it. Raises StackError if another stack has reserved that port, or if all neighbours of a port are in use.
        """
        reserved = cls(locks)
        try:
            if gateway:
                reserved._leave(gateway, host)
            own_ports = {
                name: reserved._take_near(name, port)
                for name, port in wishes.as_dict().items()
                if first is None or name not in _OF_ALL
            }
        except BaseException:
            reserved.end()
            raise
        reserved.chosen = replace(first or wishes, **own_ports)
        return reserved

    def release(self, *names: str) -> None:
        """Stop listening on these parts' ports, because the parts are about to. A second call does nothing."""
        for name in names:
            listener = self._sockets.pop(name, None)
            if listener is not None:
                listener.close()

    def lost(self, *names: str) -> list[int]:
        """The ports of these parts on which something listens, although the parts have ended."""
        ports = [self.chosen.as_dict()[name] for name in names if name not in self._sockets]
        return [port for port in ports if not _is_free(port)]

    def end(self) -> None:
        """Give all ports back."""
        self.release(*self._sockets.copy())
        while self._locks:
            self._locks.pop().release()

    def _leave(self, port: int, host: str) -> None:
        # Gateways at different addresses may use the same port; all parts listen on the loopback address.
        address_lock = FileLock(self._folder / f"{port}-{host}.lock")
        port_lock = FileLock(self._folder / f"{port}.lock", shared=True)
        for lock, whose in ((address_lock, "gateway"), (port_lock, "engine")):
            if lock.take():
                self._locks.append(lock)
            elif lock is address_lock or host in _HOSTS_WITH_LOOPBACK:
                raise StackError(
                    f"port {port} is reserved for the {whose} of another cwm up (process {lock.holder()}); choose another "
                    "with --port or CWM_PORT."
                )

    def _take_near(self, name: str, usual: int) -> int:
        for port in range(usual, min(usual + _NEIGHBOURS, 65536)):
            lock = FileLock(self._folder / f"{port}.lock")
            if not lock.take():
                continue
            listener = _listen(port)
            if listener is not None:
                self._locks.append(lock)
                self._sockets[name] = listener
                return port
            lock.release()
        raise StackError(f"no port from {usual} to {usual + _NEIGHBOURS - 1} is free for {name}.")


def _is_free(port: int) -> bool:
    listener = _listen(port)
    if listener is not None:
        listener.close()
    return listener is not None


def _listen(port: int) -> socket.socket | None:
    """A listening socket. Binding is not enough: sockets with SO_REUSEADDR may share a port that is only bound."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
        listener.listen(1)
    except OSError:  # the port is in use, or below 1024 and this user may not bind it
        listener.close()
        return None
    return listener
