"""Tool results as CWM stores them: in parts, byte for byte."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class PartKind(StrEnum):
    JSON = "json"
    """Structured content, or a text that is JSON: bodies of both are UTF-8."""
    TEXT = "text"
    BINARY = "binary"


@dataclass(frozen=True, slots=True)
class Part:
    """``body`` is what the tool returned: text in UTF-8, or the bytes that base64 stood for."""

    kind: PartKind
    media_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part without its body, which is kept under ``digest``; ``size`` in bytes."""

    kind: PartKind
    media_type: str
    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class StoredResult:
    """``owner`` is the subject that called ``tool``; others of its tenant may read it when ``shared``."""

    tenant: str
    handle: str
    owner: str
    tool: str
    parts: tuple[StoredPart, ...]
    created_at: datetime
    expires_at: datetime
    shared: bool = False

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)
