"""What vLLM serves to its operator, and to whoever reaches it straight: none of it is served through the gateway."""

from __future__ import annotations

from typing import Any

import pytest

from tests.adapters.vllm.fake_vllm import MODEL, FakeVllm
from tests.transport.llm.gateway import Gateway

pytestmark = pytest.mark.slow

# Of vLLM 0.32.0, with VLLM_SERVER_DEV_MODE=1, adapters and a fleet of experts.
POSTED = [
    "/weight_checker",
    "/wake_up",
    "/sleep",
    "/pause",
    "/resume",
    "/shutdown_weight_transfer_engine",
    "/init_weight_transfer_engine",
    "/start_weight_update",
    "/start_draft_weight_update",
    "/update_weights",
    "/update_weight_version",
    "/finish_weight_update",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/reset_prefix_cache",
    "/reset_mm_cache",
    "/reset_encoder_cache",
    "/release_kv_cache_memory",
    "/collective_rpc",
    "/abort_requests",
    "/inference/v1/abort_requests",
    "/inference/v1/generate",
    "/start_profile",
    "/stop_profile",
    "/scale_elastic_ep",
    "/is_scaling_elastic_ep",
    "/fault_tolerance/apply",
    "/tokenize",
    "/detokenize",
    "/invocations",
    "/ping",
    "/v1/chat/completions/batch",
    "/v1/chat/completions/render",
    "/v1/chat/completions/derender",
    "/v1/completions/render",
    "/v1/completions/derender",
    "/v1/messages/render",
    "/v1/responses/render",
    "/v1/systemone",
    "/v2/embed",
    "/cohere/v2/chat",
    "/generative_scoring",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
]
READ = [
    "/weight_info",
    "/version",
    "/tokenizer_info",
    "/server_info",
    "/load",
    "/kv_event_sources",
    "/is_sleeping",
    "/is_paused",
    "/get_world_size",
    "/fault_tolerance/status",
    "/ping",
]
FIELDS = (
    "kv_hints",
    "lora_request",
    "lora_path",
    "weight_version",
    "weights",
    "data_parallel_rank",
    "ec_transfer_params",
)


@pytest.mark.parametrize(("method", "paths"), [("POST", POSTED), ("GET", READ)])
async def test_a_path_of_the_engine_is_not_served(
    cwm: Gateway, vllm: FakeVllm, method: str, paths: list[str]
) -> None:
    vllm.seen.clear()
    for path in paths:
        body = {"model": MODEL, "lora_name": "mine", "lora_path": "/mine", "prompt": "hey", "input": "hey"}
        answer = await cwm.client.request(method, path, json=None if method == "GET" else body)
        assert answer.status_code in {404, 405}, path
    reached = {(seen.method, seen.target.partition("?")[0]) for seen in vllm.seen}
    assert not reached & {(method, path) for path in paths}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"])
async def test_a_field_that_chooses_weights_or_kv_is_refused_by_name(
    cwm: Gateway, vllm: FakeVllm, path: str
) -> None:
    said = {"messages": [{"role": "user", "content": "hey"}], "max_tokens": 1}
    bodies: dict[str, Any] = {
        "/v1/chat/completions": said,
        "/v1/messages": said,
        "/v1/completions": {"prompt": "hey"},
        "/v1/responses": {"input": "hey"},
    }
    for name in FIELDS:
        answer = await cwm.client.post(path, json={"model": MODEL, **bodies[path], name: "mine"})
        assert answer.status_code == 400, name
        assert "CWM-1003" in answer.text
        assert name in answer.text
    assert not vllm.turns
