"""Health check of vLLM: ``python -m cwm_engine.warm URL CHUNK_SIZE`` succeeds once vLLM answers and has stored a chunk.

LMCache's connector starts to monitor LMCache's server with its first request; before that, a restart of the server
ends vLLM. The request is sent once per run of the container, recorded by a file in a tmpfs, which a restart empties;
without its folder, on a machine without containers, every call sends the request.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path

_WARM = Path("/run/cwm/warm")
_SALT = "cwm-warm-up"
_ANSWER_SECONDS = 5
_WARM_UP_SECONDS = 120


def _ask(url: str, body: object = None, *, seconds: float = _ANSWER_SECONDS) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})  # noqa: S310 - the caller's
    with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: S310
        return bytes(answer.read())


def warm(url: str, chunk_size: int) -> None:
    """Send the first request if it has not been sent. Raises OSError while vLLM is down or refuses it."""
    _ask(f"{url}/health")
    if _WARM.exists():
        return
    model = json.loads(_ask(f"{url}/v1/models"))["data"][0]["id"]
    body = {
        "model": model,
        "prompt": [5 + index % 40 for index in range(chunk_size + 8)],
        "max_tokens": 4,
        "logprobs": 5,
        "temperature": 0,
        "cache_salt": _SALT,
    }
    _ask(f"{url}/v1/completions", body, seconds=_WARM_UP_SECONDS)
    if _WARM.parent.is_dir():
        _WARM.touch()


if __name__ == "__main__":
    try:
        warm(sys.argv[1], int(sys.argv[2]))
    except OSError as error:
        sys.exit(f"not yet: {error}")
