"""Reads what upstreams send. An answer that cannot be used fails its request at once, and says why."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import mcp_types as types
from mcp.shared.dispatcher import coerce_request_id
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

from cwm.adapters.upstream.http import error_of, oversize
from cwm.ports.upstream import UpstreamOversizeError, UpstreamRefusedError

_ID: Final = rb'"id"\s*:\s*(-?[0-9]{1,18}|"[^"\\]{1,64}")'
_VERSION: Final = rb'"jsonrpc"\s*:\s*"2\.0"'
_ID_AT_START: Final = re.compile(
    rb"\s*\{\s*(?:" + _VERSION + rb"\s*,\s*)?" + _ID + rb"\s*,\s*\"(?:result|error)\""
)
_ID_AT_END: Final = re.compile(rb",\s*" + _ID + rb"\s*(?:,\s*" + _VERSION + rb"\s*)?\}\s*$")
_OF_ANSWERS: Final = frozenset({"jsonrpc", "id", "result", "error"})
_LISTS: Final = ("tools", "resources", "resourceTemplates", "prompts")
_NO_NUMBER: Final = "holds a number that JSON does not have"


def read(raw: bytes) -> list[types.JSONRPCMessage]:
    """The messages in a line, a body or an event; more than one in a batch. Raises ValueError if it is none.

    Where a character is no character, the text has U+FFFD. An answer that cannot be read is an error under its id.
    """
    try:
        return [types.jsonrpc_message_adapter.validate_json(raw, by_name=False)]
    except ValidationError:
        pass
    try:
        value = _loads(raw.decode("utf-8-sig", "replace"))
    except RecursionError:
        return [unreadable(_id_in(raw, raw), "is nested too deep")]
    except ValueError:
        return [unreadable(_id_in(raw, raw), "is not JSON")]
    return [_message(each) for each in (value if isinstance(value, list) and value else [value])]


def answer_to(request_id: types.RequestId, raw: bytes) -> list[types.JSONRPCMessage]:
    """The messages in a body that answers one request; the last of them is the answer to it."""
    try:
        messages = read(raw)
    except ValueError:
        return [unreadable(request_id, "is not MCP")]
    others = [each for each in messages if not isinstance(each, types.JSONRPCResponse | types.JSONRPCError)]
    for each in messages:
        if isinstance(each, types.JSONRPCError):
            # Its id is null if the upstream did not read the request's.
            return [*others, types.JSONRPCError(jsonrpc="2.0", id=request_id, error=each.error)]
        if isinstance(each, types.JSONRPCResponse) and coerce_request_id(each.id) == request_id:
            return [*others, each]
    return [*others, unreadable(request_id, "does not have the id of the request")]


def unreadable(request_id: types.RequestId, why: str) -> types.JSONRPCError:
    error = error_of(UpstreamRefusedError, f"its answer {why}")
    return types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error)


def too_long(start: bytes, end: bytes, most: int) -> types.JSONRPCError:
    """The error in place of a line of more than ``most`` bytes. Raises ValueError if it has no request's id."""
    error = error_of(UpstreamOversizeError, oversize(most))
    return types.JSONRPCError(jsonrpc="2.0", id=_id_in(start, end), error=error)


def number_fault(value: Any) -> str | None:
    """What is wrong with the numbers in a JSON value; None if JSON has all of them."""
    encoded = to_json(value, inf_nan_mode="constants")
    if b"NaN" in encoded or b"Infinity" in encoded:
        try:
            from_json(encoded, allow_inf_nan=False)
        except ValueError:
            return _NO_NUMBER
    return None


def is_json(value: Any) -> bool:
    """Whether the value can be sent as it is: its text is text, and JSON has its numbers."""
    try:
        return number_fault(value) is None
    except PydanticSerializationError:
        return False


def with_json_numbers(result: dict[str, Any]) -> dict[str, Any]:
    """The result; if its structured content has NaN or infinity, an error with its text. Else UpstreamRefusedError."""
    if number_fault(result) is None:
        return result
    rest = {name: value for name, value in result.items() if name != "structuredContent"}
    if len(rest) == len(result) or number_fault(rest) is not None:
        raise UpstreamRefusedError(types.INTERNAL_ERROR, f"its answer {_NO_NUMBER}")
    note = f"The call was done, but its structured content {_NO_NUMBER} and was left out."
    return {
        **rest,
        "content": [*(rest.get("content") or ()), {"type": "text", "text": note}],
        "isError": True,
    }


def _loads(text: str) -> Any:
    """The value, with U+FFFD for each half of a surrogate pair."""
    plain = json.dumps(json.loads(text, strict=False), ensure_ascii=False)
    return json.loads(plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))


def _message(value: Any) -> types.JSONRPCMessage:
    if not isinstance(value, dict):
        raise ValueError("no message")  # noqa: TRY004 - as for any other text that is none
    if "method" in value:
        return types.jsonrpc_message_adapter.validate_python(value, by_name=False)
    if "jsonrpc" not in value and not value.keys() <= _OF_ANSWERS:
        raise ValueError("no message")
    request_id, error, result = value.get("id"), value.get("error"), value.get("result")
    if isinstance(request_id, float) and request_id.is_integer():
        request_id = int(request_id)
    if error is not None and request_id is None:
        return types.JSONRPCError(jsonrpc="2.0", id=None, error=_error(error))
    if not isinstance(request_id, int | str) or isinstance(request_id, bool):
        raise ValueError("no id")  # noqa: TRY004 - of the message, not of an argument
    if error is not None:
        return types.JSONRPCError(jsonrpc="2.0", id=request_id, error=_error(error))
    if not isinstance(result, dict):
        return unreadable(request_id, "has no result")
    # A list is read item by item.
    if _is_too_deep(result) and not any(isinstance(result.get(name), list) for name in _LISTS):
        return unreadable(request_id, "is nested too deep")
    return types.JSONRPCResponse(jsonrpc="2.0", id=request_id, result=result)


def _error(error: Any) -> types.ErrorData:
    """The error with whatever it says as its message."""
    fields = error if isinstance(error, dict) else {"message": error}
    code, message = fields.get("code"), fields.get("message")
    is_number = isinstance(code, int) and not isinstance(code, bool)
    words = [str(each) for each in (None if is_number else code, message) if each is not None]
    return types.ErrorData(
        code=code if is_number else types.INTERNAL_ERROR,
        message=": ".join(words) or "it failed and does not say why",
        data=fields.get("data"),
    )


def _is_too_deep(value: Any) -> bool:
    """Whether other JSON readers give up on the value."""
    try:
        from_json(json.dumps(value))
    except (RecursionError, ValueError):
        return True
    return False


def _id_in(start: bytes, end: bytes) -> types.RequestId:
    """The request's id in a line that is no JSON. Raises ValueError if it has none."""
    match = _ID_AT_START.match(start.removeprefix(b"\xef\xbb\xbf")) or _ID_AT_END.search(end)
    if match is None or (start is end and b'"jsonrpc"' not in start):
        raise ValueError("no id")
    request_id: types.RequestId = json.loads(match[1])
    return request_id
