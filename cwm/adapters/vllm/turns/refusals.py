"""What vLLM answers in place of an answer, in the words by which clients of OpenAI's API know it."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from cwm.domain.addresses import without_inner_addresses
from cwm.domain.errors import EngineResponseError
from cwm.domain.prefix import TokenIds
from cwm.ports.turn_wire import PromptUsage

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
}
_MOST_BYTES: Final = 256 * 1024
_TOO_LONG: Final = "maximum context length"
_MOST_PLACES, _PLACE_CHARS = 4, 120
# One of vLLM's validation errors, which are dictionaries as Python writes them.
_INVALID: Final = re.compile(r"'loc': '(?:body\.)?([^']*)', 'msg': (?:'([^']*)'|\"([^\"]*)\")")


def validation_in_words(message: str) -> str:
    """One sentence with the places, of vLLM's validation errors; any other message as it is.

    For a field of several types vLLM has an error for each of them; the first says enough.
    """
    first: dict[str, str] = {}
    for path, text, other in _INVALID.findall(message):
        first.setdefault(path, f"{path[:_PLACE_CHARS]}: {(text or other)[:_PLACE_CHARS]}")
    more = len(first) - _MOST_PLACES
    places = "; ".join([*first.values()][:_MOST_PLACES])
    return f"{places}; and {more} more" if more > 0 else places or message


class Refused(ABC):
    """A :class:`cwm.ports.turn_wire.TurnAnswer` that has no answer: the engine's words, as its client gets them."""

    aborted = begun = ended = odd = False
    failed = b""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> bytes:
        self._pieces.append(chunk)
        self._size += len(chunk)
        if self._size > _MOST_BYTES:
            raise EngineResponseError(f"The engine's refusal has more than {_MOST_BYTES} bytes.")
        return b""

    def finish(self) -> bytes:
        words = b"".join(self._pieces).decode(errors="surrogateescape")
        return self.told(without_inner_addresses(words).encode(errors="surrogateescape"))

    @abstractmethod
    def told(self, content: bytes) -> bytes:
        """The refusal in the words of its API."""

    def token_ids(self) -> TokenIds | None:
        return None

    def prompt_tokens(self) -> int:
        return 0

    def message(self) -> Mapping[str, Any] | None:
        return None

    def usage(self) -> PromptUsage | None:
        return None

    def tokens(self) -> int:
        return 0


class Refusal(Refused):
    """A refusal in OpenAI's words. ``prompt`` is the field that has the prompt."""

    def __init__(self, prompt: str) -> None:
        super().__init__()
        self._prompt = prompt

    def told(self, content: bytes) -> bytes:
        try:
            refusal = json.loads(content)
        except ValueError:
            return content
        error = refusal.get("error") if isinstance(refusal, dict) else None
        if not isinstance(error, dict):
            return content
        return json.dumps({**refusal, "error": self._reworded(error)}, separators=(",", ":")).encode()

    def _reworded(self, error: Mapping[str, Any]) -> dict[str, Any]:
        """VLLM's message, with the type, the field and the code of the original; vLLM's code is the status."""
        status, param = error.get("code"), error.get("param")
        kind = _TYPES.get(status, "server_error") if isinstance(status, int) else error.get("type")
        code = None
        if _TOO_LONG in str(error.get("message")):
            param, code = self._prompt, "context_length_exceeded"
        elif status == 404 and param == "model":
            code = "model_not_found"
        elif isinstance(param, str):
            param = param.removeprefix("body.")
        words = validation_in_words(str(error.get("message")))
        return {**error, "message": words, "type": kind, "param": param, "code": code}
