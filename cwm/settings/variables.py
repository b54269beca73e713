"""Expands ``${VARIABLE}`` in values of ``cwm.yaml``, so that secrets stay in the environment or in files that it names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from cwm.settings.secret_files import SUFFIX, secret_of

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
