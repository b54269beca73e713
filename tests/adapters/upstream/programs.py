"""Programs that speak MCP over stdio, badly: ``program(code)`` is a command line, ``HANDSHAKE`` what all share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from cwm.domain.upstream import UpstreamSpec

HANDSHAKE = """
import json, os, signal, sys, time
def answer(request, result):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}) + "\\n")
    sys.stdout.flush()
def serve(call=lambda request: {"content": [{"type": "text", "text": "done"}]}):
    for line in sys.stdin:
        request = json.loads(line)
        method = request.get("method")
        if method == "initialize":
            answer(request, {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                             "serverInfo": {"name": "bad", "version": "1"}})
        elif method == "tools/list":
            answer(request, {"tools": [{"name": "do", "inputSchema": {"type": "object"}}]})
        elif method == "tools/call":
            answer(request, call(request))
        elif "id" in request and method != "server/discover":
            answer(request, {})
        elif method == "server/discover":
            error = {"code": -32601, "message": "Method not found"}
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}), flush=True)
"""


def spec(code: str, **fields: Any) -> UpstreamSpec:
    return UpstreamSpec("bad", command=(sys.executable, "-c", HANDSHAKE + code), **fields)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def processes_with(marker: str) -> list[int]:
    """Those that were started with ``marker`` in their environment and still run."""
    found = []
    for each in Path("/proc").iterdir():
        try:
            runs = each.name.isdigit() and (each / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
            if runs and marker.encode() in (each / "environ").read_bytes():
                found.append(int(each.name))
        except OSError:
            continue
    return found
