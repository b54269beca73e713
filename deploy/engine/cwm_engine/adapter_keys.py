"""Keeps the KV of LoRA adapters apart: LMCache's keys know no adapter, so its digest becomes part of the salt.

CWM's own salts are derived from the adapter already and stay as they are, as do those of requests without an adapter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blake3 import blake3

OWN_SALTS = "cwm1-"
_FILES = ("adapter_config.json", "*.safetensors", "*.bin", "*.pt")
_Stamps = tuple[tuple[str, int, int], ...]


class AdapterKeys:
    """The salts of requests by adapter. An adapter's files are read once, at its first request."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[int, str], tuple[_Stamps, str | None]] = {}

    def salt(self, salt: str, adapter: Any) -> str | None:
        """The salt under which LMCache keeps the request's KV. None if nobody can tell with which weights it is computed.

        ``adapter`` is vLLM's ``LoRARequest``, or None. Unknown are weights in no local folder, and files that were changed after the
        adapter was loaded.
        """
        if adapter is None or salt.startswith(OWN_SALTS):
            return salt
        digest = self._digest(adapter)
        if digest is None:
            return None
        return "lora1-" + str(blake3(f"{digest}\x1f{salt}".encode()).hexdigest(length=20))

    def _digest(self, adapter: Any) -> str | None:
        path = Path(adapter.lora_path)
        try:
            stamps = _stamps(path)
        except OSError:
            return None
        # vLLM gives a new number to what it loads anew, but for what it loads in the place of another.
        number = adapter.lora_int_id, adapter.lora_path
        known = self._loaded.get(number)
        if known is None or (adapter.load_inplace and known[0] != stamps):
            known = self._loaded[number] = stamps, _read(path) if stamps else None
        return known[1] if known[0] == stamps else None


def _files(folder: Path) -> list[Path]:
    return sorted(file for pattern in _FILES for file in folder.glob(pattern))


def _stamps(folder: Path) -> _Stamps:
    """Names, sizes in bytes and times of change in ns."""
    files = [(file.name, file.stat()) for file in _files(folder)]
    return tuple((name, status.st_size, status.st_mtime_ns) for name, status in files)


def _read(folder: Path) -> str | None:
    hasher = blake3(max_threads=blake3.AUTO)
    try:
        for file in _files(folder):
            hasher.update(f"{file.name}\0{file.stat().st_size}\0".encode())
            hasher.update_mmap(file)
    except OSError as error:
        print(f"CWM: an adapter has no digest: {error}", flush=True)
        return None
    return str(hasher.hexdigest(length=16))
