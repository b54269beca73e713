"""The file with the secret: where it cannot be made, it is told which setting names it and why."""

from __future__ import annotations

import os
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


def test_a_new_secret_is_written_under_a_name_that_no_link_can_wait_under(tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "made-by-others"
    victim.write_text("precious")
    folder.mkdir()
    (folder / f"secret.{os.getpid()}").symlink_to(victim)
    key = load_secret(Isolation(secret_file=folder / "secret"))
    assert len(key) == 64
    assert (folder / "secret").stat().st_mode & 0o777 == 0o600
    assert victim.read_text() == "precious"
