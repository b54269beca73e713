"""The list of request fields that pass, against the request models of the pinned vLLM."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from cwm import shipped
from cwm.adapters.vllm.turns import request_fields
from cwm.stack.environment import Pins, prepare_environment
from tests.live.engine import engine_home

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


async def test_the_fields_that_pass_are_those_of_the_pinned_vllm() -> None:
    engine = await prepare_environment(engine_home(), Pins.for_device("cpu"), print)
    process = await asyncio.create_subprocess_exec(
        engine.python,
        str(shipped.folder("engine") / "tools/request_fields.py"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0
    assert printed.decode() == inspect.getsource(request_fields)
