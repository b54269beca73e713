"""Under which salt LMCache keeps the KV of a LoRA adapter."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.deploy.modules import adapter_keys


def adapter(folder: Path | str, number: int = 1, *, load_inplace: bool = False) -> SimpleNamespace:
    return SimpleNamespace(lora_path=str(folder), lora_int_id=number, load_inplace=load_inplace)


def written(folder: Path, weights: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path / "poet", b"verse")


def test_salts_of_the_base_and_of_cwm_stay_as_they_are(folder: Path) -> None:
    keys = adapter_keys.AdapterKeys()
    assert keys.salt("any", None) == "any"
    assert keys.salt("", None) == ""
    assert keys.salt("cwm1-0a1b", adapter(folder)) == "cwm1-0a1b"
    assert keys.salt("cwm1-0a1b", adapter("no/such/folder")) == "cwm1-0a1b"


def test_an_adapter_has_salts_of_its_own_for_each_salt(tmp_path: Path, folder: Path) -> None:
    keys = adapter_keys.AdapterKeys()
    other = written(tmp_path / "other", b"prose")
    salts = [
        keys.salt(salt, adapter(at, number)) for at, number in ((folder, 1), (other, 2)) for salt in "ab"
    ]
    assert len({*salts, "a", "b"}) == 6
    assert all(salt is not None and len(salt) <= 128 and not set(salt) & set("@/\\\0") for salt in salts)


def test_the_same_files_have_the_same_salt_elsewhere_and_in_another_process(
    tmp_path: Path, folder: Path
) -> None:
    first = adapter_keys.AdapterKeys().salt("s", adapter(folder))
    assert adapter_keys.AdapterKeys().salt("s", adapter(folder.rename(tmp_path / "moved"), 9)) == first


@pytest.mark.parametrize(("number", "load_inplace"), [(2, False), (1, True)])
def test_another_adapter_under_the_same_path_has_another_salt(
    folder: Path, number: int, load_inplace: bool
) -> None:
    keys = adapter_keys.AdapterKeys()
    first = keys.salt("s", adapter(folder))
    written(folder, b"other verses")
    second = keys.salt("s", adapter(folder, number, load_inplace=load_inplace))
    assert second not in {None, first}


def test_files_that_change_under_a_loaded_adapter_have_no_salt(folder: Path) -> None:
    keys = adapter_keys.AdapterKeys()
    assert keys.salt("s", adapter(folder)) is not None
    written(folder, b"other verses")
    assert keys.salt("s", adapter(folder)) is None


def test_an_adapter_that_is_in_no_folder_has_no_salt() -> None:
    assert adapter_keys.AdapterKeys().salt("s", adapter("somebody/poet")) is None
