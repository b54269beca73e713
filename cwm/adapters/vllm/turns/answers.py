"""What answers of every protocol have in common: the model's name in them, and how large they may be."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from cwm.domain.errors import InvalidParameterError


def renaming(served_name: str, client_name: str) -> Callable[[bytes], bytes]:
    """Puts the model's name that the client used where the engine writes its own.

    Inside a JSON string every quote is escaped, so text cannot match.
    """
    pattern = re.compile(
        rb'([{,]\s*"model"\s*:\s*)' + re.escape(json.dumps(served_name, ensure_ascii=False).encode())
    )
    name = json.dumps(client_name).encode()
    return lambda content: pattern.sub(lambda match: match[1] + name, content)


def as_it_is(content: bytes) -> bytes:
    return content


def too_large(max_bytes: int) -> InvalidParameterError:
    return InvalidParameterError(
        f"The engine's answer has more than {max_bytes} bytes. Ask for less (n, logprobs, echo), with 'stream', or "
        "outside of a session; the operator's limit is CWM_MAX_ANSWER_BYTES.",
        limit_bytes=max_bytes,
    )
