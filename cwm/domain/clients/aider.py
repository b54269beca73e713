"""aider. It names no conversation and rewrites its earlier messages, so its configuration names the session."""

from __future__ import annotations

from typing import Final

from cwm.domain.clients.client import Access, Client, Part, Protocol, json_text


def _llm(access: Access) -> list[Part]:
    text = f'aider --model openai/{access.model} --openai-api-base {access.url}/v1 --openai-api-key "{access.key}"'
    parts = [Part("in a shell", text)]
    if access.context_tokens is not None:
        facts = {
            "max_input_tokens": access.context_tokens,
            "max_output_tokens": access.answer_tokens,
            "litellm_provider": "openai",
            "mode": "chat",
        }
        parts.append(Part("in .aider.model.metadata.json", json_text({f"openai/{access.model}": facts})))
    settings = f"- name: openai/{access.model}\n  extra_params:\n    extra_headers:\n      CWM-Session-Id: my-conversation"
    note = (
        "in .aider.model.settings.yml, so that its requests are one session: it rewrites what it said before"
    )
    return [*parts, Part(note, settings)]


AIDER: Final = Client(
    "aider",
    "aider",
    Protocol.CHAT,
    _llm,
    last_words=(
        "*added these files to the chat*",
        "I am not sharing any files that you can edit yet",
        "*SEARCH/REPLACE block* Rules",
        "# File editing rules:",
    ),
)
