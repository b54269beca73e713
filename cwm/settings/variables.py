"""Secrets from the environment: in a variable, in a file that it names, or behind ``${VARIABLE}`` in ``cwm.yaml``.

Container platforms mount secrets as files: ``<VARIABLE>_FILE`` names one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SUFFIX: Final = "_FILE"

_MOST_BYTES: Final = 64 * 1024
_REFERENCE: Final = re.compile(r"\$(\$?)\{([^}]*)(\}?)")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Variables:
    """Expands references. ``used`` collects the variables that were looked up."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.used: set[str] = set()

    def filled(self, value: str) -> str:
        """``value`` with each ``${NAME}`` replaced by the variable, or by the content of the file ``NAME_FILE``.

        ``$${`` stands for a literal ``${``. Raises ValueError, without the value.
        """
        return _REFERENCE.sub(self._value, value)

    def _value(self, reference: re.Match[str]) -> str:
        escaped, name, closed = reference.groups()
        if escaped:
            return reference[0][1:]
        if not closed or not _NAME.fullmatch(name):
            raise ValueError("has a '${' that names no variable; write '$${' for the two characters")
        self.used |= {name, name + SUFFIX}
        value = secret_of(name, self._environ)
        if value is None:
            raise ValueError(f"the variable {name} is not set")
        return value


def secret_of(variable: str, environ: Mapping[str, str]) -> str | None:
    """The value of ``variable``, or the content of the file ``<variable>_FILE``; None when neither is set.

    Trailing line ends are removed. Raises ValueError, without the value, when both are set, or the file cannot be
    read or is empty.
    """
    value, path = environ.get(variable, ""), environ.get(variable + SUFFIX, "")
    if not path:
        return value or None
    if value:
        raise ValueError(f"{variable} and {variable}{SUFFIX} are both set; set one of them")
    return content_of(Path(path).expanduser(), f"{variable}{SUFFIX} names {path}, which")


def content_of(path: Path, subject: str) -> str:
    """The text of a file with a secret, without line ends behind it. Raises ValueError about ``subject`` if it cannot be read or is empty."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{subject} cannot be read: {error.strerror}") from None
    if len(raw) > _MOST_BYTES:
        raise ValueError(f"{subject} has more than {_MOST_BYTES} bytes")
    try:
        value = raw.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError(f"{subject} is not UTF-8") from None
    if not value:
        raise ValueError(f"{subject} is empty")
    return value
