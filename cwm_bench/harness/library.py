"""An upstream for benchmarks: files of a folder, and large answers like those of web APIs.

``python -m cwm_bench.harness.library FOLDER`` prints its URL once it listens.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from fastmcp import FastMCP
from mcp_types import ToolAnnotations

from cwm_bench.harness import captured as captured_answers
from cwm_bench.harness import responses

_READS = ToolAnnotations(read_only_hint=True)


def library(root: Path) -> FastMCP[Any]:
    server: FastMCP[Any] = FastMCP("library")
    reads = 0

    def inside(path: str) -> Path:
        nonlocal reads
        reads += 1
        target = (root / path).resolve()
        if not target.is_relative_to(root):
            raise ValueError("path: leads out of the library.")
        return target

    @server.tool(annotations=_READS)
    def read_file(path: str) -> str:
        """A text file, whole."""
        return inside(path).read_text(encoding="utf-8")

    @server.tool(annotations=_READS)
    def list_directory(path: str) -> str:
        """Name, size and kind of everything in a folder, a line each."""
        return "\n".join(
            f"[{'DIR' if each.is_dir() else 'FILE'}] {each.name} {each.stat().st_size} bytes"
            for each in sorted(inside(path).iterdir())
        )

    @server.tool
    def write_file(path: str, text: str) -> str:
        """Replace a text file."""
        inside(path).write_text(text, encoding="utf-8")
        return "written"

    @server.tool
    def count_calls() -> int:
        """How many times files and folders were asked for."""
        return reads

    _add_answers(server)
    return server


def _add_answers(server: FastMCP[Any]) -> None:
    @server.tool(annotations=_READS)
    def issues(kilobytes: int) -> str:
        """Issues of a repository, so many kilobytes of them."""
        return responses.issues(kilobytes)

    @server.tool(annotations=_READS)
    def series(kilobytes: int) -> dict[str, Any]:
        """A time series of so many kilobytes."""
        return responses.series(kilobytes)

    @server.tool(annotations=_READS)
    def search(kilobytes: int) -> str:
        """A page of search results of so many kilobytes."""
        return responses.search(kilobytes)

    @server.tool(annotations=_READS)
    def captured(name: str) -> str:
        """What a public web API once answered."""
        return captured_answers.answer(name)


def main(folder: str) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    app = library(Path(folder).resolve()).http_app(path="/mcp", stateless_http=True)
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="on")
    sys.stdout.write(f"Serving http://127.0.0.1:{listening.getsockname()[1]}/mcp\n")
    sys.stdout.flush()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(uvicorn.Server(config).serve(sockets=[listening]))


if __name__ == "__main__":
    main(*sys.argv[1:])
