"""The digest that an engine has of its weights."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.deploy.modules import weights


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "my-model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model-1.safetensors").write_bytes(b"weights")
    (model / "model-2.safetensors").write_bytes(b"more of them")
    return model


def digest(model: Path | str) -> str | None:
    found: str | None = weights.weights_digest(SimpleNamespace(model=str(model), revision=None))
    return found


def test_the_digest_names_the_weights_and_not_the_path(tmp_path: Path, folder: Path) -> None:
    first = digest(folder)
    assert first is not None
    assert digest(folder.rename(tmp_path / "elsewhere")) == first


@pytest.mark.parametrize("file", ["config.json", "model-1.safetensors", "model-2.safetensors"])
def test_a_digest_covers_every_file_of_the_weights_and_how_they_are_read(folder: Path, file: str) -> None:
    first = digest(folder)
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[:-1] + b"!")
    assert digest(folder) != first


def test_weights_in_one_file_have_a_digest(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"weights")
    assert digest(tmp_path / "model.gguf")


def test_what_cannot_be_read_has_no_digest_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert digest(tmp_path) is None, "no weights are in it"
    (tmp_path / "model.safetensors").mkdir()
    assert digest(tmp_path) is None
    assert "have no digest" in capsys.readouterr().out
