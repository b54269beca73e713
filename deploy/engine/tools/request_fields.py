"""Print the fields of this vLLM's requests as a Python module: run it with the engine's Python.

``<engine>/bin/python deploy/engine/tools/request_fields.py > cwm/adapters/vllm/turns/request_fields.py``
"""

from __future__ import annotations

import vllm
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

_MODELS = {
    "CHAT": ChatCompletionRequest,
    "COMPLETIONS": CompletionRequest,
    "MESSAGES": AnthropicMessagesRequest,
    "RESPONSES": ResponsesRequest,
}


def page() -> str:
    """The module."""
    lines = [
        f'"""Fields of the requests of vLLM {vllm.__version__}; written by ``deploy/engine/tools/request_fields.py``."""',
        "",
        "from __future__ import annotations",
        "",
        "from typing import Final",
    ]
    for name, model in _MODELS.items():
        fields = model.model_fields
        names = sorted({*fields, *(field.alias for field in fields.values() if field.alias)})
        lines += ["", f"{name}: Final = frozenset(", "    {"]
        lines += [*(f'        "{each}",' for each in names), "    }", ")"]
    return "\n".join(lines)


if __name__ == "__main__":
    print(page())
