"""Tells what became of each prompt of a completion request with several.

vLLM 0.32 answers such a request with the ``kv_transfer_params`` of its first prompt and the cached tokens of its last. Here the first's get
``"cwm.prompts"`` beside them: a list with those of each prompt in their order, and its ``"cwm.cached_tokens"``. Not for streams.
"""

from __future__ import annotations

from typing import Any

_PROMPTS = "cwm.prompts"
_CACHED = "cwm.cached_tokens"


def tell_each_prompt() -> None:
    """Call it in the process of vLLM's server. Does nothing for a vLLM whose server has other names."""
    try:
        from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion as Serving
    except ImportError:
        return
    respond = getattr(Serving, "request_output_to_completion_response", None)
    if respond is None:
        return

    def respond_for_each(serving: Any, outputs: list[Any], *args: Any, **kwargs: Any) -> Any:
        response = respond(serving, outputs, *args, **kwargs)
        if len(outputs) > 1 and response.kv_transfer_params is not None:
            each = [
                {_CACHED: output.num_cached_tokens, **(output.kv_transfer_params or {})} for output in outputs
            ]
            response.kv_transfer_params = {**response.kv_transfer_params, _PROMPTS: each}
        return response

    Serving.request_output_to_completion_response = respond_for_each
