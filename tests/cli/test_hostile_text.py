"""A terminal obeys nothing of what others wrote: every command of the command line, at a gateway that answers hostile text."""

from __future__ import annotations

import ast
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import typer

from cwm.cli.root import app
from cwm.domain.visible_text import visible
from cwm.transport.mcp.contract.examples import EXAMPLES
from tests.cli.command import environment

pytestmark = pytest.mark.slow

COLOUR = "\x1b[38;5;199m"
WORDS = f"{COLOUR}\x1b]0;title\x07\x9b1m\r\x08\x7f\u202e\u2066\u061c\u200b\u2028\U000e0041[red]:x:[link=http://x]y[/link]"
HOSTILE = f"{WORDS}\ud83d\nforged\tline"
# Each command line ends as a process of its own would.
LINES = """
import json, sys, traceback
from cwm.__main__ import main
for number, line in enumerate(json.load(open(sys.argv[1]))):
    print(f"\\n=== {number} ===", flush=True)
    sys.argv = ["cwm", *line]
    try:
        main()
    except SystemExit:
        pass
    except BaseException:
        traceback.print_exc()
"""
SPINNER = """
import sys
from cwm.cli.terminal.output import check_streams
from cwm.cli.demo.text import Narrator
check_streams()
narrator = Narrator(to_stderr=False)
narrator.step(sys.argv[1])
with narrator.working(sys.argv[1]):
    narrator.line(sys.argv[1])
"""


def hostile(value: Any) -> Any:
    """The same with hostile text in all texts but times."""
    if isinstance(value, dict):
        return {name: hostile(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [hostile(each) for each in value]
    return (
        f"{value}{HOSTILE}" if isinstance(value, str) and not re.match(r"\d{4}-\d\d-\d\d", value) else value
    )


FOUND: dict[str, Any] = EXAMPLES["turn_search"].answer["results"][0]
MORE: dict[str, dict[str, Any]] = {
    "window_freeze": {"warning": "Careful."},
    "window_thaw": {"warning": "Careful.", "next_step": "Go on."},
    "window_status": {"metadata": {"note": "a"}, "reason": "none"},
    "turn_show": {"warning": "Careful."},
    "turn_search": {
        "results": [{**FOUND, "message": {"role": "user", "content": "W"}}],
        "next_cursor": "c",
    },
    "turn_log": {"origin": "turn_1"},
}


def answer_of(tool: str) -> Any:
    return hostile({**EXAMPLES[tool].answer, **MORE.get(tool, {})})


@contextmanager
def gateway(*, refuses: bool) -> Iterator[str]:
    """The URL of a gateway whose every text is hostile; if it ``refuses``, so is the reason."""

    class Hostile(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self.answer(asked)

        def do_GET(self) -> None:
            self.answer({})

        def answer(self, asked: dict[str, Any]) -> None:
            result: dict[str, Any] = {}
            status = 200
            if asked.get("method") == "tools/call":
                error = hostile({"code": "CWM-9001", "message": "No.", "retryable": False, "context": {}})
                result = (
                    {"isError": True, "content": [{"type": "text", "text": json.dumps(error)}]}
                    if refuses
                    else {"content": [], "structuredContent": answer_of(asked["params"]["name"])}
                )
            elif self.path.startswith("/v1/models"):
                result = {"data": [{"id": f"m{HOSTILE}"}]}
            elif self.path != "/mcp":
                status, result = 500, {"error": {"message": HOSTILE}, "message": HOSTILE, "code": HOSTILE}
            body = {"jsonrpc": "2.0", "id": 1, "result": result} if self.path == "/mcp" else result
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command, as the command line has it."""
    command = command or typer.main.get_command(app)
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, inner in command.commands.items():
        yield from commands(inner, (*path, name))


def arguments_of(command: Any) -> list[str]:
    return [
        "x" for parameter in command.params if parameter.param_type_name == "argument" and parameter.required
    ]


def of_a_gateway() -> Iterator[tuple[tuple[str, ...], list[str]]]:
    for path, command in commands():
        names = {parameter.name for parameter in command.params}
        if "url" in names and path != ("connect",):
            more = ["--message", "Hey?"] if path == ("sessions", "generate") else []
            yield path, [*path, *(f"{each}{WORDS}" for each in arguments_of(command)), *more]


def on_terminal(folder: Path, lines: Sequence[Sequence[str]]) -> list[str]:
    """What a terminal gets of each of these command lines. Every question is answered with yes."""
    (folder / "lines").write_text(json.dumps(lines))
    return re.split(r"\n=== \d+ ===\n", from_program(folder, LINES, str(folder / "lines")))[1:]


def from_program(folder: Path, *program: str) -> str:
    ours, its = pty.openpty()
    variables = {"PYTHONPATH": str(Path.cwd()), "TERM": "xterm-256color", "COLUMNS": "9000"}
    process = subprocess.Popen(
        [sys.executable, "-c", *program],
        cwd=folder,
        env=environment(folder, variables),
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
    )
    os.close(its)
    said = b""
    with process, suppress(OSError):  # a terminal without a program is no file any more
        os.write(ours, b"y\n" * 20)
        while piece := os.read(ours, 65_536):
            said += piece
    os.close(ours)
    return said.decode(errors="backslashreplace").replace("\r\n", "\n")


def obeyed(text: str) -> str:
    """What a terminal would obey of it but colours of CWM's own."""
    own = without_colours(text.replace(COLOUR, "\x1b"))
    return "".join(each for each in own if visible(each) != each)


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize("refuses", [False, True], ids=["answers", "refusals"])
def test_what_a_gateway_answers_is_shown_with_signs(tmp_path: Path, refuses: bool) -> None:
    lines = [line for _, line in of_a_gateway()]
    with gateway(refuses=refuses) as url:
        outputs = on_terminal(tmp_path, [[*line, "--url", url] for line in lines])
    assert len(outputs) == len(lines) > 25
    for line, output in zip(lines, outputs, strict=True):
        assert obeyed(output) == "", line
        assert visible(WORDS) in without_colours(output), line
        assert "Traceback" not in output, line


def test_nobody_writes_a_line_of_a_table_or_a_fact_of_cwm(tmp_path: Path) -> None:
    with gateway(refuses=False) as url:
        outputs = on_terminal(
            tmp_path, [(*words, "--url", url) for words in (("windows", "list"), ("windows", "show", "w"))]
        )
    assert not [line for output in outputs for line in output.splitlines() if line.startswith("forged")]


def test_json_on_a_terminal_has_the_true_values_and_no_escape_sequence(tmp_path: Path) -> None:
    lines = [
        [*line, "--json"]
        for path, line in of_a_gateway()
        if path[0] in {"engines", "windows", "sessions", "turns"}
    ]
    lines = [[*line, *(["--yes"] if "delete" in line else [])] for line in lines]
    with gateway(refuses=False) as url:
        outputs = on_terminal(tmp_path, [[*line, "--url", url] for line in lines])
    answers = [answer_of(tool) for tool in EXAMPLES]
    for line, output in zip(lines, outputs, strict=True):
        assert visible(output) == output, line
        document = json.loads(output)
        assert document in answers or line[:2] == ["turns", "tag"], line


def test_raw_text_is_what_was_said(tmp_path: Path) -> None:
    lines = (
        ("turns", "show", "s"),
        ("turns", "diff", "session:a", "session:b"),
        ("sessions", "generate", "s", "--message", "Hey?"),
        ("turns", "search", "w", "--whole"),
    )
    with gateway(refuses=False) as url:
        outputs = on_terminal(tmp_path, [(*line, "--raw", "--url", url) for line in lines])
    for line, output in zip(lines, outputs, strict=True):
        assert WORDS in output, line


def test_a_refused_argument_is_shown_with_signs(tmp_path: Path) -> None:
    lines = [[*path, f"--no-such-{WORDS}"] for path, _ in commands()]
    lines += [[WORDS], ["windows", WORDS], ["audit", "list", WORDS], ["windows", "list", "--sort", WORDS]]
    for line, output in zip(lines, on_terminal(tmp_path, lines), strict=True):
        assert obeyed(output) == "", line
        text = without_colours(output)
        assert "⟨U+202E⟩" in text or "\\u202e" in text, line
        assert "[red]:x:" in text, line


def test_help_has_its_colours(tmp_path: Path) -> None:
    (output,) = on_terminal(tmp_path, [["windows", "--help"]])
    assert "\x1b[1m" in output
    assert "␛" not in output


def test_a_spinner_moves_and_what_is_said_beside_it_has_signs(tmp_path: Path) -> None:
    output = from_program(tmp_path, SPINNER, WORDS)
    lines = [
        line for line in without_colours(output.replace(COLOUR, "\x1b")).splitlines() if "[red]:x:" in line
    ]
    assert len(lines) >= 3
    assert all("⟨U+202E⟩" in line for line in lines)
    assert "\x1b[32m" in output, "the spinner is green"
    assert "␛[32m" not in output
    assert "\x1b]0;" not in output


@pytest.mark.parametrize("room", ["cwm/cli", "cwm_bench"])
def test_only_the_terminals_room_writes_past_the_signs(room: str) -> None:
    past = {"Console", "Colours", "as_it_is", "rich_proxied_file", "buffer", "__stdout__", "__stderr__"}
    allowed = {"cwm/cli/terminal", "cwm/cli/demo/text.py", "cwm_bench/command.py"}
    for file in Path(room).rglob("*.py"):
        if allowed & {str(file), str(file.parent)}:
            continue
        calls = {node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)}
        names = {node.id if isinstance(node, ast.Name) else getattr(node, "attr", "") for node in calls}
        assert not names & past, file
