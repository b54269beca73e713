"""Finds the files shipped with the code: in the installed package, or in the checkout of an editable installation."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_IN_CHECKOUT = {"migrations": "migrations", "engine": "deploy/engine"}


def folder(name: str) -> Path:
    """The folder ``migrations`` or ``engine``."""
    installed = _PACKAGE / "shipped_files" / name
    return installed if installed.is_dir() else _PACKAGE.parent / _IN_CHECKOUT[name]
