"""Evaluates one JMESPath expression in its own process, because an expression can use unbounded time and memory.

Standard input: a line of JSON, ``{"expression", "cpu_seconds", "memory_bytes", "answer_bytes"}``, then the
document. Standard output: ``=`` and the answer as compact JSON, or ``!`` and an error message.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from typing import Any, Final

_NARROW: Final = "The answer is too large: narrow the expression."
_TOO_MUCH: Final = "The expression takes too much memory: narrow it."


def main() -> None:
    request = json.loads(sys.stdin.buffer.readline())
    resource.setrlimit(resource.RLIMIT_CPU, (request["cpu_seconds"], request["cpu_seconds"] + 1))
    resource.setrlimit(resource.RLIMIT_AS, (request["memory_bytes"],) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        output = _evaluate(request["expression"], request["answer_bytes"])
    except MemoryError:
        output = f"!{_TOO_MUCH}".encode()
    sys.stdout.buffer.write(output)


def _evaluate(expression: str, most_bytes: int) -> bytes:
    import jmespath
    from jmespath.exceptions import JMESPathError

    try:
        document = json.loads(sys.stdin.buffer.read())
    except (ValueError, RecursionError):
        return b"!This part cannot be read as JSON."
    try:
        value = jmespath.search(expression, document)
    except JMESPathError as error:
        return f"!{str(error).splitlines()[0]}".encode(errors="backslashreplace")
    except (RecursionError, ValueError, TypeError, AttributeError):
        return b"!The expression cannot be evaluated."
    try:
        return b"=" + _compact(value, most_bytes)
    except (OverflowError, RecursionError):
        return f"!{_NARROW}".encode()


def _compact(value: Any, most_bytes: int) -> bytes:
    """Compact UTF-8 JSON; ASCII with escapes if the value has a lone surrogate, which UTF-8 cannot encode."""
    try:
        return b"".join(_pieces(value, most_bytes, ensure_ascii=False))
    except UnicodeEncodeError:
        return b"".join(_pieces(value, most_bytes, ensure_ascii=True))


def _pieces(value: Any, most_bytes: int, *, ensure_ascii: bool) -> Iterator[bytes]:
    size = 0
    for piece in json.JSONEncoder(ensure_ascii=ensure_ascii, separators=(",", ":")).iterencode(value):
        data = piece.encode()
        size += len(data)
        if size > most_bytes:
            raise OverflowError
        yield data


if __name__ == "__main__":
    main()
