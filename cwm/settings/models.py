"""Parses ``models:`` of ``cwm.yaml``: the aliases of served models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, StringConstraints, ValidationError

from cwm.domain.model_aliases import ModelAliases
from cwm.settings.fields import Fields, SettingsError, first_fault

MODELS: Final = "models"
ALIASES: Final = "models.aliases"

_Name = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^\S+$")]


class ModelFields(Fields):
    aliases: dict[_Name, _Name] = Field(default_factory=dict)


def read_aliases(models: Any, path: Path) -> ModelAliases:
    """The aliases from the key of the file. Raises SettingsError."""
    try:
        fields = ModelFields.model_validate({} if models is None else models)
    except ValidationError as invalid:
        raise SettingsError(first_fault(invalid, MODELS, path, f"'{MODELS}'")) from None
    return ModelAliases(fields.aliases)
