"""The stack as a whole, with programs that only live in the places of its parts."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from uuid import uuid4

import pytest
from redis import Redis

from cwm.stack import local, proc, shm
from cwm.stack import plan as planning
from cwm.stack.engine import StackEngine
from cwm.stack.environment import GIB
from cwm.stack.errors import StackError
from cwm.stack.local import LocalStack
from cwm.stack.part import Recipe
from cwm.stack.plan import StackPlan
from cwm.stack.redis_url import RedisAddress
from tests.eventually import eventually
from tests.stack.shapes import PlanFor
from tests.stack.stand_ins import StandIns, environment, log_of, model

pytestmark = pytest.mark.slow

STUBBORN = """
import signal
signal.signal(signal.SIGTERM, lambda *_: print("asked to end", flush=True))
signal.alarm(60)
print("up", flush=True)
while True:
    signal.pause()
"""
MAKES_KV = """
import mmap, os, signal
file = os.open("{path}", os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 4096)
mapped = mmap.mmap(file, 4096)
print("up", flush=True)
signal.pause()
"""
READS_KV = """
import mmap, os, signal, time
print("up", flush=True)
while not os.path.exists("{path}") or os.path.getsize("{path}") == 0:
    time.sleep(0.01)
mapped = mmap.mmap(os.open("{path}", os.O_RDWR), 4096)
signal.pause()
"""
LEAVES_A_SOCKET = """
import os, signal, socket, tempfile, uuid
path = f"{os.environ.get('VLLM_RPC_BASE_PATH', tempfile.gettempdir())}/{uuid.uuid4()}"
met = socket.socket(socket.AF_UNIX)
met.bind(path)
print("up", path, flush=True)
signal.pause()
"""


@dataclass
class Terminal:
    """Where the stack reports to; ``gone`` like one that was closed."""

    said: list[str] = field(default_factory=list)
    gone: bool = False

    def write(self, line: str) -> None:
        if self.gone:
            raise OSError(errno.EIO, "Input/output error")
        self.said.append(line)


@pytest.fixture
def plan(plan_for: PlanFor, monkeypatch: pytest.MonkeyPatch) -> StackPlan:
    """A plan whose environment and model are there."""

    monkeypatch.setattr(local, "prepare_environment", environment)
    monkeypatch.setattr(local, "prepare_model", model)
    monkeypatch.setattr(local, "_WATCH_SECONDS", 0.01)
    return plan_for(model="tiny")


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


async def test_parts_are_kept_alive_after_the_terminal_is_gone(plan: StackPlan, terminal: Terminal) -> None:
    async with StandIns(plan, report=terminal.write) as stack:
        terminal.gone = True
        await stack.kill("vllm")
        await eventually(lambda: bool(stack.restarts["vllm"] and stack.pids("vllm")))
        await stack.wait_ready(20)


async def test_parts_are_kept_alive_while_nothing_can_be_written_down(
    plan: StackPlan, terminal: Terminal
) -> None:
    written = plan.run_folder / f"{plan.key}.json"
    async with StandIns(plan, report=terminal.write) as stack:
        written.unlink()
        written.mkdir()  # as unwritable as on a full disk
        await stack.kill("vllm")
        await eventually(lambda: bool(stack.restarts["vllm"] and stack.pids("vllm")))
        await stack.wait_ready(20)
        written.rmdir()


async def test_what_vllm_would_refuse_ends_the_start_before_a_part_is_started(
    plan: StackPlan, terminal: Terminal
) -> None:
    plan = replace(plan, serving_variables={"CWM_CHAT_TEMPLATE": "/nowhere.jinja"})
    (plan.home / "bin").mkdir(parents=True)
    (plan.home / "bin" / "python").symlink_to(sys.executable)
    with pytest.raises(StackError, match=r"CWM_CHAT_TEMPLATE is /nowhere\.jinja, which is no file"):
        async with LocalStack(plan, report=terminal.write):
            pass
    assert [log.name for log in plan.logs.iterdir()] == ["parsers.log"]


async def test_the_other_logs_are_watched_after_one_was_removed(plan: StackPlan, terminal: Terminal) -> None:
    logs = plan.logs
    async with StandIns(plan, report=terminal.write):
        (logs / "lmcache.log").unlink()
        with (logs / "vllm.log").open("a") as log:
            log.write("ERROR out of blocks\n")
        await eventually(lambda: "vllm: ERROR out of blocks" in terminal.said)


async def test_two_stacks_of_one_home_keep_logs_of_their_own(
    plan: StackPlan, plan_for: PlanFor, terminal: Terminal, tmp_path: Path
) -> None:
    other = plan_for(model="tiny", storage_path=tmp_path / "other")
    told_by_other = Terminal()
    async with (
        StandIns(plan, report=terminal.write) as stack,
        StandIns(other, report=told_by_other.write),
    ):
        with (other.logs / "vllm.log").open("a") as log:
            log.write("ERROR of the other\n")
        await eventually(lambda: "vllm: ERROR of the other" in told_by_other.said)
        await stack.kill("vllm")
        await eventually(lambda: bool(stack.restarts["vllm"] and stack.pids("vllm")))
        await stack.wait_ready(20)
        await eventually(lambda: log_of(plan, "vllm").count("up") == 2)

    assert "ERROR" not in "".join(terminal.said)


async def test_what_is_interrupted_while_it_stops_stops_all_the_same(
    plan: StackPlan, terminal: Terminal
) -> None:
    pids: list[int] = []

    async def up() -> None:
        async with StandIns(plan, report=terminal.write, vllm=STUBBORN) as stack:
            pids.extend([*stack.pids("vllm"), *stack.pids("lmcache")])

    running = asyncio.create_task(up())
    await eventually(lambda: "asked to end" in log_of(plan, "vllm"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert len(pids) == 2
    assert [pid for pid in pids if proc.start_time(pid)] == []
    assert "vLLM did not stop by itself and was killed" in terminal.said


async def test_a_start_that_fails_says_why_though_it_is_interrupted_meanwhile(
    plan: StackPlan, terminal: Terminal
) -> None:
    stack = StandIns(
        plan, report=terminal.write, lmcache=STUBBORN, vllm="raise SystemExit('no weights here')"
    )
    starting = asyncio.create_task(stack.__aenter__())
    await eventually(lambda: "asked to end" in log_of(plan, "lmcache"))
    starting.cancel()
    with pytest.raises(StackError, match="no weights here"):
        await starting

    assert stack.pids("lmcache") == []
    assert not (plan.run_folder / f"{plan.key}.json").exists()


async def test_a_stack_leaves_the_gateway_its_port(plan: StackPlan, terminal: Terminal) -> None:
    usual = plan.ports.vllm
    async with StandIns(replace(plan, gateway_port=usual), report=terminal.write) as stack:
        assert stack.ports.vllm != usual


def variables_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


async def test_no_part_is_given_what_is_withheld_from_the_engine(
    plan: StackPlan, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTES_TOKEN", "hush")
    async with StandIns(replace(plan, withheld=frozenset({"NOTES_TOKEN"})), report=terminal.write) as stack:
        pids = [*stack.pids("vllm"), *stack.pids("lmcache")]
        given = [variables_of(pid) for pid in pids]

    assert len(given) == 2
    assert not any(b"hush" in variables for variables in given)


async def test_the_pool_that_a_killed_stack_left_is_room_for_the_next_one(
    plan: StackPlan, plan_for: PlanFor, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = SharedMemory(f"lmcache_l1_pool_{plan.key}", create=True, size=GIB // 64)
    assert left.buf is not None
    left.buf[:] = bytes(len(left.buf))
    monkeypatch.setattr(planning, "_shm_free_gb", lambda: 0.75)
    try:
        assert plan_for(model="tiny", cpu_cache_gb=2).l1_gb == pytest.approx(0.15 + 1 / 64, abs=0.001)
        async with StandIns(plan, report=terminal.write):
            assert not (shm.FOLDER / left.name.lstrip("/")).exists()
    finally:
        left.close()
        with suppress(FileNotFoundError):
            left.unlink()
    assert plan_for(model="tiny", cpu_cache_gb=2).l1_gb == pytest.approx(0.15)


async def test_kv_of_a_killed_vllm_that_lmcache_still_reads_is_removed_with_the_stack(
    plan: StackPlan, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_WATCH_SECONDS", 60)
    kv = shm.FOLDER / f"lmcache_kv_of_a_test_{uuid4().hex}"
    makes, reads = MAKES_KV.format(path=kv), READS_KV.format(path=kv)
    async with StandIns(plan, report=terminal.write, lmcache=reads, vllm=makes) as stack:
        await eventually(lambda: kv.name in {found.name for found in shm.mapped_by(stack.pids("lmcache"))})
        await stack.kill("vllm")
        await eventually(lambda: bool(stack.restarts["vllm"] and stack.pids("vllm")))
        await stack.wait_ready(20)
        assert kv.exists()
    assert not kv.exists()


class Robbed(StandIns):
    """vLLM listens on its port; another program takes that port just before vLLM's first start."""

    thief: socket.socket | None = None

    def _recipes(self, engine: StackEngine, undo: AsyncExitStack) -> Sequence[Recipe]:
        lmcache, vllm = super()._recipes(engine, undo)
        reserved = engine.reserved
        port = reserved.chosen.vllm
        listens = f"import socket, signal; s = socket.create_server(('127.0.0.1', {port})); print('up', flush=True); signal.pause()"

        def release() -> None:
            reserved.release("vllm")
            if self.thief is None:
                self.thief = socket.create_server(("127.0.0.1", port))

        return [
            lmcache,
            replace(
                vllm,
                argv=[sys.executable, "-c", listens],
                before_start=release,
                port=port,
                listeners=["vllm"],
            ),
        ]


async def test_a_start_that_loses_a_port_tries_the_next(plan: StackPlan, terminal: Terminal) -> None:
    stack = Robbed(plan, report=terminal.write)
    try:
        async with stack:
            assert stack.thief is not None
            lost = stack.thief.getsockname()[1]
            assert proc.listens(stack.pids("vllm"), stack.ports.vllm)
            assert stack.ports.vllm != lost
            assert stack.vllm_url.endswith(f":{stack.ports.vllm}")
            assert len(stack.pids("lmcache")) == 1
    finally:
        if stack.thief is not None:
            stack.thief.close()

    assert f"another program took port {lost} of vLLM. Starting again at other ports." in terminal.said


async def test_two_stacks_of_different_homes_get_different_ports(
    plan: StackPlan, plan_for: PlanFor, terminal: Terminal, tmp_path: Path
) -> None:
    other = plan_for(model="tiny", storage_path=tmp_path / "other", home=tmp_path / "other home")
    async with StandIns(plan, report=terminal.write) as one, StandIns(other, report=terminal.write) as two:
        assert not set(one.ports.as_dict().values()) & set(two.ports.as_dict().values())


async def test_a_pool_is_left_to_the_stack_that_is_using_it(plan: StackPlan, terminal: Terminal) -> None:
    async with StandIns(plan, report=terminal.write):
        pool = SharedMemory(f"lmcache_l1_pool_{plan.key}", create=True, size=4096)
        try:
            with pytest.raises(StackError, match="is using"):
                await StandIns(plan, report=terminal.write).__aenter__()
            assert (shm.FOLDER / pool.name.lstrip("/")).exists()
        finally:
            pool.close()
            pool.unlink()


async def test_a_redis_of_the_settings_is_told_with_what_signs_in_there(
    plan: StackPlan, terminal: Terminal, redis_url: str
) -> None:
    with Redis.from_url(redis_url) as root:
        root.acl_setuser("cwm", enabled=True, passwords=["+p@ss/word"], keys=["*"], categories=["+@all"])
        try:
            told = redis_url.replace("redis://", "redis://cwm:p%40ss%2Fword@") + "/1"
            with_redis = replace(plan, redis=RedisAddress.parse(told))
            async with StandIns(with_redis, report=terminal.write) as stack:
                with Redis.from_url(stack.redis_url) as client:
                    assert client.acl_whoami() == "cwm"
                    assert client.client_info()["db"] == 1
        finally:
            root.acl_deluser("cwm")


async def test_the_sockets_that_a_vllm_leaves_go_with_the_stack(plan: StackPlan, terminal: Terminal) -> None:
    async with StandIns(plan, report=terminal.write, vllm=LEAVES_A_SOCKET) as stack:
        sockets = [Path(log_of(plan, "vllm").split()[-1])]
        await stack.kill("vllm")
        await eventually(lambda: bool(stack.restarts["vllm"] and stack.pids("vllm")))
        await stack.wait_ready(20)
        sockets.append(Path(log_of(plan, "vllm").split()[-1]))
        assert all(path.is_socket() for path in sockets)

    assert not any(path.exists() for path in sockets)
    assert not any(path.parent.exists() for path in sockets)
