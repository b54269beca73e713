"""``${VARIABLE}`` in a value of ``cwm.yaml``: secrets stay in the environment, or in files that it names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from cwm.settings.secret_files import SUFFIX, secret_of

_REFERENCE: Final = re.compile(r"\$(\$?)\{([^}]*)(\}?)")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Variables:
    """Fills values in; ``used`` are the variables that were asked for so far."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.used: set[str] = set()

    def filled(self, value: str) -> str:
        """``value`` with each ``${NAME}`` replaced by the variable or by what ``NAME_FILE`` holds; ``$${`` stands for ``${``. Raises ValueError, without the value."""
        return _REFERENCE.sub(self._value, value)

    def _value(self, reference: re.Match[str]) -> str:
        escaped, name, closed = reference.groups()
        if escaped:
            return reference[0][1:]
        if not closed or not _NAME.fullmatch(name):
            raise ValueError("has a '${' that names no variable; '$${' stands for the two characters")
        self.used |= {name, name + SUFFIX}
        value = secret_of(name, self._environ)
        if value is None:
            raise ValueError(f"the variable {name} is not set")
        return value
