"""What a process that has configured logging writes, read from its standard error."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta
from typing import Any

import pytest

pytestmark = pytest.mark.slow


SETUP = """
import logging, warnings
import structlog
import fastmcp
from cwm.adapters.telemetry.logging import configure_logging
log = structlog.get_logger("cwm.test")
configure_logging({level!r}, {fmt!r})
"""


def written(code: str, level: str = "INFO", fmt: str = "json") -> str:
    program = SETUP.format(level=level, fmt=fmt) + code
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr


def lines(code: str, level: str = "INFO") -> list[dict[str, Any]]:
    return [json.loads(line) for line in written(code, level).splitlines()]


def test_an_event_is_one_line_of_json_with_its_fields_and_a_time_in_utc() -> None:
    (line,) = lines('log.info("frozen", window="w", blocks=3)')
    at = datetime.fromisoformat(line.pop("timestamp"))
    assert at.utcoffset() == timedelta(0)
    assert line == {"event": "frozen", "window": "w", "blocks": 3, "level": "info", "logger": "cwm.test"}


def test_events_below_the_level_are_not_written() -> None:
    assert [e["event"] for e in lines('log.info("low"); log.warning("high")', level="WARNING")] == ["high"]
    assert [e["event"] for e in lines('log.debug("low")', level="DEBUG")] == ["low"]


def test_libraries_are_quiet_and_write_through_the_same_door() -> None:
    code = """
for name in ("uvicorn", "uvicorn.access", "fastmcp", "mcp.server", "httpx2", "sqlalchemy.engine"):
    logging.getLogger(name).info("chatter")
    logging.getLogger(name).warning("of %s", name)
"""
    told = lines(code)
    assert [e["event"] for e in told] == [
        "of uvicorn",
        "of uvicorn.access",
        "of fastmcp",
        "of mcp.server",
        "of httpx2",
        "of sqlalchemy.engine",
    ]
    assert {e["level"] for e in told} == {"warning"}


def test_a_failing_tool_is_told_by_cwm_and_not_again_by_the_library() -> None:
    assert lines('logging.getLogger("fastmcp.server.server").error("Error calling tool")') == []


def test_an_exception_is_told_in_the_same_line() -> None:
    (line,) = lines('try: 1/0\nexcept ZeroDivisionError: log.exception("failed", tool="t")')
    assert (line["event"], line["tool"], line["level"]) == ("failed", "t", "error")
    assert line["exception"][0]["exc_type"] == "ZeroDivisionError"


def test_newlines_in_a_value_do_not_make_another_line() -> None:
    (line,) = lines('log.info("said", text="a\\nb\\x00")')
    assert line["text"] == "a\nb\x00"


def test_warnings_are_logged() -> None:
    (line,) = lines('warnings.warn("mind this", UserWarning)')
    assert "mind this" in line["event"]
    assert line["level"] == "warning"


def test_away_from_a_terminal_auto_is_json_and_console_is_text() -> None:
    assert json.loads(written('log.info("e")', fmt="auto"))["event"] == "e"
    text = written('log.info("frozen", window="w")', fmt="console")
    assert "frozen" in text
    assert "window=w" in text
    assert "\x1b[" not in text


def test_text_shows_what_others_wrote_with_signs() -> None:
    code = r"""
log.warning("said \x1b]0;t\x07", who="\x1b[31mred\u202e", names=["\x1b[2J"])
logging.getLogger("library").warning("of %s", "\x9b1m")
try: raise OSError("no \x1b[2J")
except OSError: log.exception("failed")
"""
    text = written(code, fmt="console")
    assert not set("\x1b\x07\x9b\u202e") & set(text)
    for shown in ("said ␛]0;t␇", "who=␛[31mred⟨U+202E⟩", "of ⟨U+009B⟩1m", "OSError: no ␛[2J"):
        assert shown in text


def test_configuring_twice_writes_once() -> None:
    assert len(lines('configure_logging("INFO", "json"); log.info("once")')) == 1


@pytest.mark.parametrize("fmt", ["json", "console"])
def test_no_line_shows_a_secret_or_the_value_of_a_local_variable(fmt: str) -> None:
    code = """
from cwm.adapters.telemetry.redaction import HIDDEN
HIDDEN.hide(["pa55word"])
def connect():
    prompt = "what was " + "asked"
    raise OSError("cannot reach postgresql://cwm:pa55word@db/cwm with Bearer s3cr3t-token")
try: connect()
except OSError: log.exception("failed", why="pa55word", authorization="Bearer s3cr3t-token")
logging.getLogger("asyncio").error("of %s", {"password": "s3cr3t-token"})
"""
    text = written(code, fmt=fmt)
    assert "cannot reach" in text
    assert not [word for word in ("pa55word", "s3cr3t-token", "what was asked") if word in text]
