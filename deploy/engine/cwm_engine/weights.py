"""The digest of the weights that a model was loaded from, for the engine that serves it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blake3 import blake3

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")


def weights_digest(model_config: Any) -> str | None:
    """BLAKE3, 32 hex digits, over ``config.json`` and the weights of vLLM's ``model_config``, with their names and sizes.

    None if the weights are in no local folder, or cannot be read.
    """
    try:
        files = _files(model_config)
        return _digest(files) if files else None
    except (OSError, ValueError) as error:
        print(f"CWM: the weights of {model_config.model} have no digest: {error}", flush=True)
        return None


def _files(model_config: Any) -> list[Path]:
    folder = Path(model_config.model)
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        folder = _downloaded(model_config)
    kinds = ([*folder.glob(pattern)] for pattern in _WEIGHTS)
    weights = next((files for files in kinds if files), [])
    return sorted([*folder.glob("config.json"), *weights]) if weights else []


def _downloaded(model_config: Any) -> Path:
    """The folder of a model that vLLM took from a hub by its name."""
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model_config.model, revision=model_config.revision, local_files_only=True))


def _digest(files: list[Path]) -> str:
    hasher = blake3(max_threads=blake3.AUTO)
    for file in files:
        hasher.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        hasher.update_mmap(file)
    return str(hasher.hexdigest(length=16))
