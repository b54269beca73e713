"""Write a tiny model with sliding windows: ``make_windowed_model.py OUT``.

A random Gemma 3 of six layers: five see 64 tokens, one sees all, so that vLLM has two groups of KV. Its tokenizer is the tiny
model's. Runs inside the engine environment.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from make_tiny_model import BEGIN, SPECIAL, TURN_END, VOCABULARY, tokenizer
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

WINDOW = 64


@torch.no_grad()
def model() -> Gemma3ForCausalLM:
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=6,
        layer_types=["sliding_attention"] * 5 + ["full_attention"],
        sliding_window=WINDOW,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        query_pre_attn_scalar=64,
        max_position_embeddings=32768,
        bos_token_id=SPECIAL.index(BEGIN),
        eos_token_id=SPECIAL.index(TURN_END),
        tie_word_embeddings=True,
    )
    made = Gemma3ForCausalLM(config).to(torch.float32)
    for name, weights in made.named_parameters():
        if weights.ndim == 2:
            # With the usual initial values an answer hardly depends on what stands far before it.
            gain = 0.1 if "embed" in name else 1.6 / math.sqrt(weights.shape[-1])
            weights.normal_(0.0, gain)
    return made


if __name__ == "__main__":
    out = Path(sys.argv[1])
    tokenizer().save_pretrained(out)
    model().save_pretrained(out)
