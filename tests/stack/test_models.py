"""Models: made whole, kept at a fixed path, named by a digest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cwm.stack.environment import EngineEnvironment
from cwm.stack.errors import StackError
from cwm.stack.models import _Builder, prepare_model

MAKES = """
import pathlib, sys
out = pathlib.Path(sys.argv[1])
out.mkdir()
print("drawing the weights")
(out / "config.json").write_text("{}")
(out / "config.json").chmod(0o600)
"""
FAILS = MAKES + "raise SystemExit('ERROR: out of luck')\n"


@pytest.fixture
def environment(tmp_path: Path, python: str) -> EngineEnvironment:
    """The engine's environment as far as a script needs it: a Python."""
    program = tmp_path / "engine" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.symlink_to(python)
    return EngineEnvironment(tmp_path / "engine")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "my-model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"max_position_embeddings": 2048}))
    (model / "model.safetensors").write_bytes(b"weights")
    return model


async def test_a_folder_is_served_under_its_name_with_its_own_context(
    tmp_path: Path, folder: Path, environment: EngineEnvironment
) -> None:
    model = await prepare_model(str(folder), tmp_path / "home", environment, print)

    assert (model.folder, model.name, model.longest_context) == (folder, "my-model", 2048)
    assert model.default_context == 2048


async def test_a_model_that_is_not_there_is_refused_by_name(
    tmp_path: Path, environment: EngineEnvironment
) -> None:
    with pytest.raises(StackError, match="'no-such-model' is neither"):
        await prepare_model("no-such-model", tmp_path / "home", environment, print)


async def test_a_path_that_lmcache_takes_for_no_name_is_refused(
    tmp_path: Path, environment: EngineEnvironment
) -> None:
    home, mine = tmp_path / "me@work", tmp_path / "model@2"
    mine.mkdir()
    (mine / "config.json").write_text("{}")
    with pytest.raises(StackError, match=r"'@'.*CWM_HOME"):
        await prepare_model("tiny", home, environment, pytest.fail)
    with pytest.raises(StackError, match=r"'@'.*CWM_MODEL"):
        await prepare_model(str(mine), tmp_path, environment, pytest.fail)

    assert not home.exists()


async def test_a_model_is_made_once_and_its_making_told(
    tmp_path: Path, environment: EngineEnvironment
) -> None:
    script = tmp_path / "make.py"
    script.write_text(MAKES)
    said: list[str] = []
    builder = _Builder(tmp_path / "models", environment, said.append)

    made = await builder.once("tiny-1", "the tiny model", builder.tiny(script))
    script.write_text(FAILS)
    again = await builder.once("tiny-1", "the tiny model", builder.tiny(script))

    assert made == again == tmp_path / "models" / "tiny-1"
    assert said == ["making the tiny model (once)", "drawing the weights", f"the tiny model is in {made}"]


async def test_every_user_may_read_a_model_that_was_made(
    tmp_path: Path, environment: EngineEnvironment
) -> None:
    script = tmp_path / "make.py"
    script.write_text(MAKES)
    builder = _Builder(tmp_path / "home", environment, print, frozenset())
    folder = await builder.once("made", "a model", builder.tiny(script))
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o644}


async def test_half_of_a_model_is_never_served_and_is_made_again(
    tmp_path: Path, environment: EngineEnvironment
) -> None:
    script = tmp_path / "make.py"
    script.write_text(FAILS)
    builder = _Builder(tmp_path / "models", environment, print)

    with pytest.raises(StackError, match="out of luck"):
        await builder.once("tiny-1", "the tiny model", builder.tiny(script))
    assert not (tmp_path / "models" / "tiny-1").exists()
    script.write_text(MAKES)

    made = await builder.once("tiny-1", "the tiny model", builder.tiny(script))
    assert [entry.name for entry in made.iterdir()] == ["config.json"]
