"""Turn a GGUF file of SmolLM2-135M-Instruct into a float32 folder that vLLM serves: ``convert_smollm2.py GGUF OUT``.

Runs inside the engine environment with ``gguf`` and ``accelerate`` on the path; needs no network.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM


def convert(source: Path, out: Path) -> None:
    """Dequantise ``source`` and write weights, configuration and tokenizer to ``out``."""
    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    print("reading the tokenizer", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(**where)
    print("dequantising the weights", flush=True)
    quantised = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)

    config = quantised.config
    config.__dict__.pop("quantization_config", None)
    config.dtype = torch.float32
    # A model loaded from GGUF refuses to be saved, so its values move into a fresh one.
    plain = LlamaForCausalLM(config).float()
    plain.load_state_dict({name: value.float() for name, value in quantised.state_dict().items()})
    plain.tie_weights()

    print("writing the model", flush=True)
    plain.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
