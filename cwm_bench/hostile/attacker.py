"""Sends one request over and over on several connections: ``python -m cwm_bench.hostile.attacker``.

It reads a JSON object from standard input: ``host``, ``port``, ``method``, ``target``, ``headers`` (a list of objects, one for each
principal, taken in turn), ``body`` (a file), ``connections``, ``seconds``. It writes how many answers of each status came.
"""

from __future__ import annotations

import http.client
import itertools
import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

_TIMEOUT_SECONDS: Final = 60.0
_EVENTS: Final = "text/event-stream"


def send(
    connection: http.client.HTTPConnection, method: str, target: str, headers: dict[str, str], body: bytes
) -> int:
    """The status. The body of a stream that does not end is not read."""
    connection.request(method, target, body or None, headers)
    answer = connection.getresponse()
    if method == "GET" and _EVENTS in answer.headers.get("content-type", ""):
        connection.close()
    else:
        answer.read()
    return answer.status


def main(asked: dict[str, Any]) -> Counter[str]:
    statuses: Counter[str] = Counter()
    body = Path(asked["body"]).read_bytes()
    principals = itertools.cycle(asked["headers"])
    until = time.monotonic() + asked["seconds"]

    def repeat() -> None:
        connection = http.client.HTTPConnection(asked["host"], asked["port"], timeout=_TIMEOUT_SECONDS)
        while time.monotonic() < until:
            try:
                status = str(send(connection, asked["method"], asked["target"], next(principals), body))
            except (OSError, http.client.HTTPException):
                connection.close()
                status = "closed"
            statuses[status] += 1
        connection.close()

    threads = [threading.Thread(target=repeat) for _ in range(asked["connections"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.load(sys.stdin))))
