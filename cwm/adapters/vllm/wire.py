"""Builds and reads vLLM's JSON, and reads its metrics."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, TypeVar

from prometheus_client.parser import text_string_to_metric_families

from cwm.domain.addresses import without_inner_addresses
from cwm.domain.errors import CwmError, EngineResponseError, InvalidParameterError
from cwm.domain.figures import count, token_count
from cwm.domain.look import CANDIDATES, Look
from cwm.domain.prefix import TokenIds, are_ids
from cwm.ports.engine import Completion, Counters, Delta, Generation, LookAnswer, ServedModel

_QUOTED_CHARS: Final = 300
_NUMBER: Final = re.compile(r"[0-9]{1,15}")
_PROMPT_SOURCES: Final = "vllm:prompt_tokens_by_source_total"
_CACHE_CONFIG: Final = "vllm:cache_config_info{"
_STARTED: Final = "process_start_time_seconds"
_COUNTED: Final = (
    _PROMPT_SOURCES,
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:external_prefix_cache_queries_total",
    "vllm:external_prefix_cache_hits_total",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
)

# ``kv_transfer_params``: of connector.py and closed_connector.py in deploy/engine/cwm_engine/ (request and response), and of LMCache itself.
_LOAD_LIMIT: Final = "cwm.load_tokens"
_LOADED: Final = "cwm.loaded_tokens"
_FAILED: Final = "cwm.failed_tokens"
_RESTING: Final = "cwm.resting_tokens"
_DROP_AFTER: Final = "cwm.drop_after"
_DROPPED: Final = "cwm.dropped_blocks"
_REPORT_LOADED: Final = "cwm.tell_loaded"
_WEIGHTS: Final = "cwm.weights"
_DEPLOYMENT: Final = "cwm.deployment"
_REPORT_WEIGHTS: Final = "cwm.tell_weights"
_NO_REUSE: Final = "cwm.no_reuse"
_BLOCK_SIZE: Final = "cwm.block_size"
_WORLD_SIZE: Final = "cwm.world_size"
_STORE_LIMIT: Final = "lmcache.max_offload_tokens"

_Parsed = TypeVar("_Parsed")


def completion_body(generation: Generation, *, stream: bool) -> bytes:
    """A request body of ``/v1/completions``; fields that CWM sets override ``sampling``."""
    body: dict[str, Any] = {
        **generation.sampling,
        "model": generation.model,
        "prompt": generation.token_ids,
        "max_tokens": generation.max_tokens,
        "cache_salt": generation.cache_salt,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stream": stream,
    }
    options = {
        _LOAD_LIMIT: generation.load_tokens,
        _STORE_LIMIT: generation.store_tokens,
        _REPORT_LOADED: generation.tell_loaded or None,
        _DROP_AFTER: generation.drop_after,
        _WEIGHTS: generation.weights or None,
        _REPORT_WEIGHTS: not stream or None,
    }
    if options := {name: value for name, value in options.items() if value is not None}:
        body["kv_transfer_params"] = options
    if stream:
        body["stream_options"] = {"include_usage": True}
    return json.dumps(body, separators=(",", ":")).encode()


def look_body(generation: Generation, places: Sequence[int], probes: Sequence[int] = ()) -> bytes:
    """A request body of ``/v1/completions`` with one prompt for each place, the context's tokens up to there, and for each probe.

    vLLM reports the cached tokens of the last prompt, which is the longest.
    """
    options = {
        _LOAD_LIMIT: 0,
        _STORE_LIMIT: 0,
        **({_WEIGHTS: generation.weights} if generation.weights else {}),
    }
    fields = {
        "model": generation.model,
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": CANDIDATES,
        "cache_salt": generation.cache_salt,
        "return_tokens_as_token_ids": True,
        "kv_transfer_params": options,
    }
    words = [str(token) for token in generation.token_ids[: places[-1]]]
    ends = list(accumulate(len(word) + 1 for word in words))
    ids = ",".join(words)
    at_places = [f"[{ids[: ends[place - 1] - 1]}]" for place in places]
    context = ids[: ends[places[-1] - 2]] if places[-1] > 1 else ""
    prompts = ",".join((*at_places, *(f"[{context}{probe}]" for probe in probes)))
    return f'{json.dumps(fields, separators=(",", ":"))[:-1]},"prompt":[{prompts}]}}'.encode()


def look(answer: Mapping[str, Any], places: Sequence[int]) -> LookAnswer:
    """``places``: the numbers of places and probes."""
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    top = tuple(_by_id(choice["logprobs"]["top_logprobs"][0]) for choice in choices)
    if len(top) != len(places):
        raise ValueError("not one choice for each prompt")
    return LookAnswer(Look(tuple(places), top), _cached(answer["usage"]) or 0)


def transfer_params(weights: str, prompt: TokenIds | None = None) -> dict[str, Any]:
    """``kv_transfer_params`` of a turn: use stored KV only of these weights, and compute these ids instead of the messages."""
    params = {_WEIGHTS: weights} if weights else {}
    return params if prompt is None else {**params, "prompt_token_ids": list(prompt)}


def completion(answer: Mapping[str, Any], prompt_tokens: int) -> Completion:
    """``prompt_tokens``: how many were sent, for an answer that does not count them. A figure that cannot be one is unknown."""
    choice, transfer = answer["choices"][0], answer.get("kv_transfer_params") or {}
    usage = answer.get("usage") or {}
    counted = token_count(usage.get("prompt_tokens"))
    prompt_tokens = prompt_tokens if counted is None else counted
    cached = _cached(usage, prompt_tokens) or 0
    return Completion(
        text=choice["text"],
        token_ids=_ids(choice["token_ids"]),
        finish_reason=choice["finish_reason"],
        prompt_tokens=prompt_tokens,
        # vLLM also counts tokens that LMCache promised but failed to load, and that vLLM then computed.
        cached_tokens=max(0, cached - (token_count(transfer.get(_FAILED)) or 0)),
        fingerprint=transfer.get(_DEPLOYMENT) or answer.get("system_fingerprint"),
        ttft_ms=_duration((answer.get("metrics") or {}).get("time_to_first_token_ms")),
        loaded_tokens=token_count(transfer.get(_LOADED)),
        resting_tokens=token_count(transfer.get(_RESTING)),
        dropped_blocks=count(transfer.get(_DROPPED)),
        weights=transfer.get(_WEIGHTS),
        top=tuple(
            _by_id(likeliest) for likeliest in (choice.get("logprobs") or {}).get("top_logprobs") or ()
        ),
        no_reuse=transfer.get(_NO_REUSE) or "",
        block_size=count(transfer.get(_BLOCK_SIZE)),
        world_size=count(transfer.get(_WORLD_SIZE)),
    )


def delta(event: Mapping[str, Any]) -> Delta:
    """One event of a streamed completion; the usage event has no choice. Raises CWM-5002 for an error event."""
    if "error" in event:
        raise EngineResponseError(f"vLLM ended a stream with an error: {_message(event['error'])}")
    usage = event.get("usage") or {}
    prompt_tokens = token_count(usage.get("prompt_tokens"))
    cached_tokens = _cached(usage, prompt_tokens)
    for choice in event["choices"][:1]:
        return Delta(
            text=choice["text"],
            token_ids=_ids(choice.get("token_ids") or ()),
            finish_reason=choice.get("finish_reason"),
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
        )
    return Delta(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)


def models(answer: Mapping[str, Any]) -> list[ServedModel]:
    """VLLM lists an adapter without a length, and names the model that it changes, by default the first."""
    entries = {m["id"]: m for m in answer["data"]}
    bases = [m for m in answer["data"] if not m.get("parent")]
    return [
        _adapter(m, entries.get(m["parent"]) or bases[0]) if m.get("parent") and bases else _model(m)
        for m in answer["data"]
    ]


def _model(entry: Mapping[str, Any]) -> ServedModel:
    return ServedModel(entry["id"], entry.get("root") or entry["id"], _length(entry["max_model_len"]))


def _adapter(entry: Mapping[str, Any], base: Mapping[str, Any]) -> ServedModel:
    length = _length(entry.get("max_model_len") or base["max_model_len"])
    root = base.get("root") or base["id"]
    return ServedModel(entry["id"], root, length, entry.get("root") or entry["id"])


def _length(tokens: Any) -> int:
    if not (length := token_count(tokens)):
        raise ValueError("not the length of a context")
    return length


def token_ids(answer: Mapping[str, Any]) -> TokenIds:
    return _ids(answer["tokens"])


def rendered_ids(answer: Mapping[str, Any]) -> TokenIds:
    return _ids(answer["token_ids"])


def _ids(values: Any) -> TokenIds:
    if not are_ids(values):
        raise ValueError("not the ids of tokens")
    return tuple(values)


def paths(document: Mapping[str, Any]) -> frozenset[str]:
    """Of an OpenAPI document."""
    return frozenset(document["paths"])


def version(answer: Mapping[str, Any]) -> str:
    return str(answer["version"])


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """The parts of ``/tokenizer_info`` that CWM needs; empty if the endpoint is disabled."""

    special_tokens: frozenset[str]
    chat_template: str | None


def tokenizer(answer: Mapping[str, Any]) -> Tokenizer:
    """Read ``/tokenizer_info``. The values of added tokens are strings, or objects with a ``content`` string."""
    tokens = answer.get("added_tokens_decoder") or {}
    contents = (v.get("content") if isinstance(v, dict) else v for v in tokens.values())
    template = answer.get("chat_template")
    return Tokenizer(
        frozenset(text for text in contents if isinstance(text, str) and text),
        template if isinstance(template, str) and template else None,
    )


def understand(read: Callable[[Mapping[str, Any]], _Parsed], content: bytes, request: str) -> _Parsed:
    """Apply ``read`` to a JSON answer. Raises CWM-5002."""
    try:
        return read(json.loads(content))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise EngineResponseError(
            f"vLLM's answer to {request} is not what vLLM documents; is there a vLLM at this URL?",
            request=request,
            received=content[:_QUOTED_CHARS].decode(errors="replace"),
        ) from error


def refusal(status: int, content: bytes, request: str, model: str | None) -> CwmError:
    """The error for an error status: vLLM's refusals are the request's fault, everything else is vLLM's."""
    message, param = _error_of(content)
    if status in {401, 403}:
        return EngineResponseError(
            "vLLM refuses the gateway's key; set CWM_VLLM_API_KEY to its --api-key.", status=status
        )
    if status == 404 and model is not None and param == "model":
        return InvalidParameterError(message, model=model, field="model")
    if 400 <= status < 500 and status != 404:
        return InvalidParameterError(message, field=param, status=status)
    return EngineResponseError(
        f"vLLM answered {request} with {status}: {message}", status=status, request=request
    )


def counters(exposition: str) -> Counters:
    """Totals over all engines of a process. Raises ValueError if the text has none of them."""
    totals = dict.fromkeys(_COUNTED, 0.0)
    sources: dict[str, float] = {}
    for name, labels, value in _samples(exposition):
        totals[name] += value
        if name == _PROMPT_SOURCES:
            source = labels.get("source", "")
            sources[source] = sources.get(source, 0.0) + value
    return Counters(
        prompt_tokens_by_source=sources,
        prefix_queries=totals["vllm:prefix_cache_queries_total"],
        prefix_hits=totals["vllm:prefix_cache_hits_total"],
        external_queries=totals["vllm:external_prefix_cache_queries_total"],
        external_hits=totals["vllm:external_prefix_cache_hits_total"],
        requests_running=totals["vllm:num_requests_running"],
        requests_waiting=totals["vllm:num_requests_waiting"],
    )


def started(exposition: str) -> str | None:
    lines = (line.split() for line in exposition.splitlines())
    return next((words[1] for words in lines if words[:1] == [_STARTED]), None)


def kv_dtype(exposition: str) -> str | None:
    return _cache_config(exposition).get("cache_dtype")


def kv_room(exposition: str) -> int | None:
    labels = _cache_config(exposition)
    blocks, block_size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
    return (
        int(blocks) * int(block_size) if _NUMBER.fullmatch(blocks) and _NUMBER.fullmatch(block_size) else None
    )


def _cache_config(exposition: str) -> Mapping[str, str]:
    lines = [line for line in exposition.splitlines() if line.startswith(_CACHE_CONFIG)]
    for family in text_string_to_metric_families("\n".join([*lines, ""])):
        for sample in family.samples:
            return sample.labels
    return {}


def _samples(exposition: str) -> Iterable[tuple[str, Mapping[str, str], float]]:
    """Samples of the counted metrics. Other lines are skipped before parsing: there are thousands of buckets."""
    lines = [line for line in exposition.splitlines() if line.startswith(_COUNTED)]
    if not lines:
        raise ValueError("no totals of an engine")
    for family in text_string_to_metric_families("\n".join([*lines, ""])):
        for sample in family.samples:
            if sample.name in _COUNTED:
                yield sample.name, sample.labels, sample.value


def _by_id(likeliest: Mapping[str, float] | None) -> dict[int, float]:
    """Log-probabilities by token id, from ``{"token_id:7": -0.1}``: vLLM's form when tokens are requested as ids."""
    return {int(token.removeprefix("token_id:")): float(value) for token, value in (likeliest or {}).items()}


def _cached(usage: Mapping[str, Any], prompt_tokens: int | None = None) -> int | None:
    """None also if it is no count, or more than the prompt has."""
    details = usage.get("prompt_tokens_details")
    cached = token_count(details.get("cached_tokens")) if isinstance(details, dict) else None
    return None if cached is None or (prompt_tokens is not None and cached > prompt_tokens) else cached


def _duration(milliseconds: Any) -> float | None:
    is_number = isinstance(milliseconds, int | float) and not isinstance(milliseconds, bool)
    return milliseconds if is_number and 0 <= milliseconds < math.inf else None


def _error_of(content: bytes) -> tuple[str, str | None]:
    """The message, and the field that it is about."""
    try:
        answer = json.loads(content)
    except ValueError:
        return content[:_QUOTED_CHARS].decode(errors="replace") or "nothing", None
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, dict):
        return _message(error), error.get("param")
    return str(error or answer)[:_QUOTED_CHARS], None


def _message(error: Any) -> str:
    words = str(error.get("message") if isinstance(error, dict) else error)[:_QUOTED_CHARS]
    return without_inner_addresses(words)
