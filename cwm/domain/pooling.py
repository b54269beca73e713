"""Requests to models that do not generate: which paths and fields pass, and what a gateway sets itself."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from cwm.domain.errors import InvalidParameterError, ModelDoesNotGenerateError
from cwm.domain.figures import token_count

POOLING_PATHS: Final = (
    "/v1/embeddings",
    "/v1/score",
    "/score",
    "/v1/rerank",
    "/rerank",
    "/v2/rerank",
    "/pooling",
    "/classify",
)
_SALT: Final = "cache_salt"
_ENCODING: Final = "encoding_format"
_UNCOUNTED: Final = ("bytes", "bytes_only")
_INPUTS: Final = frozenset(
    "input text_1 text_2 query queries documents items data_1 data_2".split()  # noqa: SIM905 - as vLLM names them
)
_OPTIONS: Final = frozenset(
    {
        "model",
        "user",
        _ENCODING,
        "embed_dtype",
        "endianness",
        "dimensions",
        "normalize",
        "use_activation",
        "task",
        "top_n",
        "return_documents",
        "instruction",
        "truncate_prompt_tokens",
        "truncation_side",
        "padding",
        "add_special_tokens",
    }
)

# Inside a JSON string every quote is escaped, so text cannot match. vLLM has it at the end, and of ranks at the beginning.
_USAGE: Final = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')


def pooling_fields(body: bytes) -> dict[str, Any]:
    """The fields of a request. CWM-1003 for what is no JSON object, for fields that do not pass, for inputs that are no text or tokens, and for an encoding whose answer has no usage."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise InvalidParameterError("The body is not a JSON object.", field="body")
    if _SALT in fields:
        raise InvalidParameterError(f"'{_SALT}' is set by the gateway; leave it out.", field=_SALT)
    for name, value in fields.items():
        if name not in _INPUTS | _OPTIONS:
            raise InvalidParameterError(f"'{name[:128]}' is not known; leave it out.", field=name[:128])
        if name in _INPUTS and not _is_text(value):
            raise InvalidParameterError(f"'{name}' takes text or token ids only.", field=name)
    if fields.get(_ENCODING) in _UNCOUNTED:
        raise InvalidParameterError(
            f"'{_ENCODING}' is float or base64: an answer in bytes does not say how many tokens it used.",
            field=_ENCODING,
        )
    model = fields.get("model")
    if not isinstance(model, str | None):
        raise InvalidParameterError("'model' is the name of a model.", field="model")
    return fields


def salted(fields: Mapping[str, Any], salt: str) -> bytes:
    return json.dumps({**fields, _SALT: salt}, separators=(",", ":")).encode()


def used_tokens(answer: bytes) -> int:
    """The tokens that an answer says it used; 0 if it says none. The answer itself, which may be large, is not parsed."""
    usage = _USAGE.search(answer)
    try:
        tokens = None if usage is None else token_count(json.loads(usage[1]).get("total_tokens"))
    except ValueError:
        return 0
    return tokens or 0


def does_not_generate(model: str, paths: Collection[str]) -> ModelDoesNotGenerateError:
    """``paths``: those that the model serves instead, in the order of :data:`POOLING_PATHS`."""
    return ModelDoesNotGenerateError(
        f"The model '{model}' does not generate. It is for requests to {', '.join(paths)}.",
        field="model",
        model=model,
        serves=list(paths),
    )


def too_large(max_bytes: int) -> InvalidParameterError:
    return InvalidParameterError(
        f"The engine's answer has more than {max_bytes} bytes. Send fewer inputs at once; "
        "the operator's limit is CWM_MAX_ANSWER_BYTES.",
        limit_bytes=max_bytes,
    )


def _is_text(value: object) -> bool:
    """An engine would fetch the address of an image or a sound, whoever names it."""
    if isinstance(value, list):
        return all(isinstance(each, str | int) or _is_text_list(each) for each in value)
    return isinstance(value, str)


def _is_text_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str | int) for each in value)
