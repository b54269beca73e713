"""Ports that are chosen before anything listens on them."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from cwm.stack.ports import LOOPBACK, Ports, ReservedPorts


def free_ports() -> Ports:
    held = ReservedPorts.take(Ports(**dict.fromkeys(Ports().as_dict(), 0)))
    held.release()
    return held.chosen


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


def test_the_wanted_ports_are_taken_where_they_are_free() -> None:
    wanted = free_ports()

    reserved = ReservedPorts.take(wanted)
    reserved.release()

    assert reserved.chosen == wanted


def test_a_port_in_use_is_replaced_by_another_and_only_that_one() -> None:
    wanted = free_ports()
    with closing(listener(wanted.vllm)):
        reserved = ReservedPorts.take(wanted)
        reserved.release()

    assert reserved.chosen.vllm != wanted.vllm
    assert reserved.chosen.coordinator == wanted.coordinator


def test_nobody_gets_a_reserved_port_until_it_is_released() -> None:
    reserved = ReservedPorts.take(free_ports())

    with pytest.raises(OSError, match="in use"):
        listener(reserved.chosen.lmcache)
    reserved.release("lmcache")
    listener(reserved.chosen.lmcache).close()

    with pytest.raises(OSError, match="in use"):
        listener(reserved.chosen.vllm)
    reserved.release()
