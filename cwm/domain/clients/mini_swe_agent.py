"""mini-swe-agent. It asks through LiteLLM, names no conversation and takes no tools of others."""

from __future__ import annotations

from typing import Final

from cwm.domain.clients.client import Access, Client, Part, Protocol, json_text

_REGISTRY: Final = "models.json"


def _llm(access: Access) -> list[Part]:
    lines = [
        f'export MSWEA_MODEL_NAME=openai/{access.model} OPENAI_API_BASE={access.url}/v1 OPENAI_API_KEY="{access.key}"',
        # It knows no price, and refuses to work without one.
        "export MSWEA_COST_TRACKING=ignore_errors",
    ]
    if access.context_tokens is None:
        return [Part("in the shell that starts mini", "\n".join(lines))]
    facts = {
        "max_input_tokens": access.context_tokens,
        "max_output_tokens": access.answer_tokens,
        "litellm_provider": "openai",
        "mode": "chat",
    }
    lines.append(f"export LITELLM_MODEL_REGISTRY_PATH={_REGISTRY}")
    return [
        Part("in the shell that starts mini", "\n".join(lines)),
        Part(f"in {_REGISTRY}", json_text({f"openai/{access.model}": facts})),
    ]


MINI_SWE_AGENT: Final = Client("mini-swe-agent", "mini-swe-agent", Protocol.CHAT, _llm)
