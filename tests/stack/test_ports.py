"""Ports that are chosen before anything listens on them."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cwm.stack import proc
from cwm.stack.errors import StackError
from cwm.stack.ports import LOOPBACK, Ports, ReservedPorts, machine_locks


@pytest.fixture
def wanted() -> Ports:
    """Six ports that were free a moment ago."""
    held = [listener(0) for _ in Ports().as_dict()]
    ports = [bound.getsockname()[1] for bound in held]
    for bound in held:
        bound.close()
    return Ports(*ports)


@pytest.fixture
def reserved(wanted: Ports, tmp_path: Path) -> Iterator[ReservedPorts]:
    taken = ReservedPorts.take(wanted, tmp_path)
    yield taken
    taken.end()


def listener(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((LOOPBACK, port))
        bound.listen()
    except OSError:
        bound.close()
        raise
    return bound


def test_the_wanted_ports_are_taken_where_they_are_free(wanted: Ports, reserved: ReservedPorts) -> None:
    assert reserved.chosen == wanted


def test_a_port_in_use_is_replaced_by_a_neighbour_and_only_that_one(wanted: Ports, tmp_path: Path) -> None:
    with closing(listener(wanted.vllm)):
        reserved = ReservedPorts.take(wanted, tmp_path)
        reserved.end()

    assert wanted.vllm < reserved.chosen.vllm < wanted.vllm + 200
    assert reserved.chosen.coordinator == wanted.coordinator


def test_no_part_gets_the_gateway_s_port_though_nobody_listens_there_yet(
    wanted: Ports, tmp_path: Path
) -> None:
    reserved = ReservedPorts.take(wanted, tmp_path, gateway=wanted.vllm)
    other = ReservedPorts.take(wanted, tmp_path)
    other.end()
    reserved.end()

    assert wanted.vllm not in {*reserved.chosen.as_dict().values(), *other.chosen.as_dict().values()}
    assert reserved.chosen.coordinator == wanted.coordinator


def test_a_gateway_of_another_address_does_not_keep_a_stack_from_starting(
    wanted: Ports, tmp_path: Path
) -> None:
    first = ReservedPorts.take(wanted, tmp_path, gateway=wanted.vllm)
    second = ReservedPorts.take(wanted, tmp_path, gateway=wanted.vllm, host="192.0.2.1")
    second.end()
    first.end()

    assert second.chosen.vllm != wanted.vllm


def test_a_gateway_is_refused_the_port_that_another_s_is_yet_to_listen_on(
    wanted: Ports, tmp_path: Path
) -> None:
    first = ReservedPorts.take(wanted, tmp_path, gateway=wanted.vllm)
    with pytest.raises(
        StackError, match=rf"{wanted.vllm} is reserved for the gateway .*{os.getpid()}.*--port"
    ):
        ReservedPorts.take(wanted, tmp_path, gateway=wanted.vllm)
    first.end()

    ReservedPorts.take(wanted, tmp_path, gateway=wanted.vllm).end()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::"])
def test_a_gateway_is_refused_the_port_of_another_stack_s_part_that_does_not_listen_yet(
    reserved: ReservedPorts, tmp_path: Path, host: str
) -> None:
    reserved.release(*Ports().as_dict())

    with pytest.raises(StackError, match="is reserved for the engine of another"):
        ReservedPorts.take(Ports(), tmp_path, gateway=reserved.chosen.vllm, host=host)
    ReservedPorts.take(Ports(), tmp_path, gateway=reserved.chosen.vllm, host="192.0.2.1").end()


def test_nobody_gets_a_reserved_port_until_its_part_starts(reserved: ReservedPorts) -> None:
    with pytest.raises(OSError, match="in use"):
        listener(reserved.chosen.lmcache)
    reserved.release("lmcache")
    listener(reserved.chosen.lmcache).close()

    with pytest.raises(OSError, match="in use"):
        listener(reserved.chosen.vllm)


def test_another_stack_does_not_take_a_port_that_only_looks_free(
    reserved: ReservedPorts, tmp_path: Path
) -> None:
    reserved.release(*Ports().as_dict())

    other = ReservedPorts.take(reserved.chosen, tmp_path)
    other.end()

    assert not set(other.chosen.as_dict().values()) & set(reserved.chosen.as_dict().values())


def test_ports_given_back_are_free_for_the_next(wanted: Ports, tmp_path: Path) -> None:
    for _ in range(2):
        reserved = ReservedPorts.take(wanted, tmp_path)
        assert reserved.chosen == wanted
        reserved.end()


def test_stacks_of_different_homes_share_the_locks_of_the_machine(
    wanted: Ports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cwm.stack.ports._LOCKS", tmp_path)
    one, other = (machine_locks(tmp_path / home) for home in ("one", "other"))
    first = ReservedPorts.take(wanted, one)
    first.release(*Ports().as_dict())  # its parts have not bound them yet
    second = ReservedPorts.take(wanted, other)
    second.end()
    first.end()

    assert not set(first.chosen.as_dict().values()) & set(second.chosen.as_dict().values())
    assert stat.S_IMODE(one.stat().st_mode) == 0o700


def test_a_folder_for_locks_that_is_no_folder_of_this_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cwm.stack.ports._LOCKS", tmp_path)
    (tmp_path / f"cwm-ports-{os.getuid()}").symlink_to(tmp_path / "elsewhere")

    assert machine_locks(tmp_path / "home") == tmp_path / "home" / "run" / "ports"


def test_a_port_on_which_somebody_else_listens_is_lost(reserved: ReservedPorts) -> None:
    assert reserved.lost("vllm") == [], "it is still reserved"
    reserved.release("vllm", "lmcache")
    with closing(listener(reserved.chosen.vllm)):
        assert reserved.lost("vllm", "lmcache") == [reserved.chosen.vllm]
    assert reserved.lost("vllm") == []


def test_no_port_at_all_is_said_in_words(
    wanted: Ports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cwm.stack.ports._NEIGHBOURS", 1)
    with closing(listener(wanted.valkey)), pytest.raises(StackError, match="is free for valkey"):
        ReservedPorts.take(wanted, tmp_path)

    listener(wanted.vllm).close()


def test_whose_a_port_is_can_be_told(python: str) -> None:
    script = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    with subprocess.Popen(
        [python, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())

        assert proc.listens([other.pid], port)
        assert not proc.listens([os.getpid()], port)
        other.communicate("\n")
    assert not proc.listens([other.pid], port)
