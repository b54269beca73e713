"""The file with the secret: where it cannot be made, it is told which setting names it and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from cwm.adapters.local.secret import load_secret
from cwm.settings import Isolation, SettingsError


@pytest.mark.parametrize("below", ["secret", "folder/secret"])
def test_a_secret_file_below_a_file_is_told_as_that(tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    file.touch()

    with pytest.raises(SettingsError, match=f"CWM_SECRET_FILE {file}/{below} .*: {file} is not a folder"):
        load_secret(Isolation(secret_file=file / below))


def test_a_secret_file_that_is_a_folder_is_told_as_that(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"CWM_SECRET_FILE {tmp_path} .*: Is a directory"):
        load_secret(Isolation(secret_file=tmp_path))
