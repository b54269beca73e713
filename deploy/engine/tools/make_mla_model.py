"""Write a tiny model with latent attention (MLA) for CWM's tests: ``make_mla_model.py OUT``.

A three-layer random DeepSeek-V2 of 4 M parameters with the tokenizer of ``make_tiny_model.py``. Runs inside the engine environment.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from make_tiny_model import BEGIN, SPECIAL, TURN_END, VOCABULARY, tokenizer
from transformers import DeepseekV2Config, DeepseekV2ForCausalLM


def model() -> DeepseekV2ForCausalLM:
    torch.manual_seed(0)
    config = DeepseekV2Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=None,
        # The only sizes of latent KV that vLLM's kernel for CPUs has.
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=64,
        v_head_dim=64,
        # No layer has experts.
        first_k_dense_replace=3,
        n_routed_experts=4,
        n_shared_experts=1,
        num_experts_per_tok=2,
        moe_intermediate_size=128,
        topk_method="greedy",
        n_group=1,
        topk_group=1,
        max_position_embeddings=32768,
        bos_token_id=SPECIAL.index(BEGIN),
        eos_token_id=SPECIAL.index(TURN_END),
        tie_word_embeddings=False,
    )
    drawn = DeepseekV2ForCausalLM(config).to(torch.float32)
    # With the usual initial values a tiny model forgets its context, and wrong KV would change no answer.
    with torch.no_grad():
        for name, parameter in drawn.named_parameters():
            if parameter.ndim == 2:
                outer = "embed" in name or "lm_head" in name
                parameter.normal_(0.0, 0.1 if outer else 1.6 / math.sqrt(parameter.shape[-1]))
    return drawn


if __name__ == "__main__":
    out = Path(sys.argv[1])
    tokenizer().save_pretrained(out)
    model().save_pretrained(out)
