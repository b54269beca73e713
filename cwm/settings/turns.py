"""Settings of turns: what one request may ask of the engine."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from cwm.domain.constraints import SchemaLimits
from cwm.domain.response import ContextLimit
from cwm.settings.fields import Bytes, Count, Group, Megabytes
from cwm.settings.origins import split


class Turns(Group):
    """What one turn may ask of the engine. A request over a limit is refused with CWM-1003, which names the setting."""

    schema_bytes: Bytes = Field(
        128 * 1024,
        ge=0,
        description="Largest schema, pattern, grammar or list of choices that the engine compiles for an answer, in bytes.",
    )
    schema_depth: int = Field(32, ge=1, le=128, description="Deepest nesting of such a schema.")
    schema_properties: Count = Field(1_000, ge=0, description="Most properties of such a schema.")
    schema_patterns: Count = Field(
        50, ge=0, description="Most patterns and strings of limited length in such a schema."
    )
    schema_expansion: Count = Field(
        2_000,
        ge=0,
        description="Most characters that its patterns have once their repetitions are written out: `(a{1,9}){1,9}` has 81.",
    )
    schema_count: Count = Field(
        100_000_000,
        ge=1,
        description="Largest product of nested counts (maxItems, maxLength, minProperties, ...) in such a schema.",
    )

    sequences: Count = Field(
        64,
        ge=1,
        description="Most answers of one request: its prompts times `n`. Each counts as a request in the limits.",
    )

    passed_fields: Annotated[tuple[str, ...], BeforeValidator(split)] = Field(
        (),
        description="Request fields and headers that pass to vLLM although CWM drops or refuses them by default, comma-separated: fields "
        "that it does not know, `priority`, `ec_transfer_params`, `vllm_xargs`, `x-data-parallel-rank`, `x-vllm-priority`.",
    )
    private_media: bool = Field(
        False,
        description="Allow messages whose images, audio or video the engine fetches from private, loopback or link-local addresses.",
    )

    chained_context_mb: Megabytes = Field(
        16.0,
        gt=0,
        description="Most memory in MB of all that a request with `previous_response_id` or `conversation` goes on from, its own input "
        "included: the JSON text, and 80 bytes for each value in it.",
    )
    conversation_items: Count = Field(
        10_000, ge=1, description="Most items of one conversation of `/v1/conversations`."
    )

    def context_limit(self) -> ContextLimit:
        return ContextLimit(round(self.chained_context_mb * 2**20), self.conversation_items)

    def schema_limits(self) -> SchemaLimits:
        return SchemaLimits(
            bytes=self.schema_bytes,
            depth=self.schema_depth,
            properties=self.schema_properties,
            patterns=self.schema_patterns,
            expansion=self.schema_expansion,
            count=self.schema_count,
        )
