"""Other names of served models, for clients whose model names are fixed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class ModelAliases:
    """``by_pattern``: a served model by a name, or by a pattern such as ``claude-*``."""

    by_pattern: Mapping[str, str] = field(default_factory=dict)

    def served(self, name: str, models: Collection[str]) -> str | None:
        """Which of the served ``models`` a request for ``name`` means: a model of that name, else the alias' one; None for neither."""
        if name in models:
            return name
        model = self.by_pattern.get(name) or next(
            (model for pattern, model in self.by_pattern.items() if fnmatchcase(name, pattern)), None
        )
        return model if model in models else None

    def names(self, models: Collection[str]) -> dict[str, str]:
        """The names without wildcards by which clients reach one of ``models``, beside the models' own, with the model of each."""
        return {
            name: model
            for name, model in self.by_pattern.items()
            if model in models and name not in models and not set(name) & set("*?[")
        }
