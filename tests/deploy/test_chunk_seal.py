"""What opens a stored chunk, and what does not."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.deploy.modules import chunk_seal

NAME, SALT = "/models/tiny@1000100@0@cb82@cwm1-salt", "cwm1-salt"


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("keys") / "kv.keys"
    write(path, secrets.token_hex(32))
    return chunk_seal.Keyring(path)


def test_the_names_of_keys_are_at_the_head_of_what_they_seal_and_no_keys(tmp_path: Path) -> None:
    new, old = secrets.token_hex(32), secrets.token_hex(32)
    write(tmp_path / "old", old)
    write(tmp_path / "both", new, old)
    before, after = (chunk_seal.Keyring(tmp_path / name) for name in ("old", "both"))
    assert after.names()[1:] == before.names()
    assert seal(after, b"kv")[1:5].hex() == after.names()[0]
    assert not {new, old} & set(after.names())


def write(path: Path, *lines: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text("".join(f"{line}\n" for line in lines))
    fresh.replace(path)


def seal(ring: Any, plain: bytes, name: str = NAME, salt: str = SALT) -> bytearray:
    sealed = bytearray(len(plain) + chunk_seal.OVERHEAD_BYTES)
    assert chunk_seal.seal(ring, name, salt, memoryview(plain), memoryview(sealed)) == len(sealed)
    return sealed


def unseal(ring: Any, sealed: bytes | bytearray, size: int, name: str = NAME, salt: str = SALT) -> bytes:
    plain = bytearray(size)
    chunk_seal.unseal(ring, name, salt, memoryview(sealed), memoryview(plain))
    return bytes(plain)


@given(plain=st.binary(min_size=1, max_size=300), padding=st.integers(0, 40))
def test_what_was_sealed_opens_also_from_a_longer_buffer(ring: Any, plain: bytes, padding: int) -> None:
    sealed = seal(ring, plain) + os.urandom(padding)
    assert unseal(ring, sealed, len(plain)) == plain


@given(plain=st.binary(min_size=1, max_size=100), data=st.data())
def test_no_changed_bit_opens(ring: Any, plain: bytes, data: st.DataObject) -> None:
    sealed = seal(ring, plain)
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    sealed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(chunk_seal.SealError):
        unseal(ring, sealed, len(plain))


@given(plain=st.binary(min_size=2, max_size=100), data=st.data())
def test_nothing_cut_short_opens(ring: Any, plain: bytes, data: st.DataObject) -> None:
    sealed = seal(ring, plain)
    kept = data.draw(st.integers(0, len(sealed) - 1))
    with pytest.raises(chunk_seal.SealError):
        unseal(ring, sealed[:kept], len(plain))
    with pytest.raises(chunk_seal.SealError):
        unseal(ring, sealed, len(plain) - 1)


def test_a_value_under_another_chunks_name_does_not_open(ring: Any) -> None:
    sealed = seal(ring, b"kv")
    with pytest.raises(chunk_seal.SealError, match="belongs under another name"):
        unseal(ring, sealed, 2, name=NAME.replace("cb82", "cb83"))


def test_a_value_of_another_salt_does_not_open(ring: Any) -> None:
    sealed = seal(ring, b"kv")
    with pytest.raises(chunk_seal.SealError):
        unseal(ring, sealed, 2, salt="cwm1-other")


def test_what_an_older_key_sealed_opens_for_as_long_as_the_key_is_there(tmp_path: Path) -> None:
    path, old, new = tmp_path / "kv.keys", secrets.token_hex(32), secrets.token_hex(32)
    write(path, old)
    rotated = chunk_seal.Keyring(path)
    before = seal(rotated, b"kv")
    write(path, "# rotated", new, "", old)
    after = seal(rotated, b"kv")
    assert before[1:5] != after[1:5]
    assert unseal(rotated, before, 2) == unseal(rotated, after, 2) == b"kv"
    write(path, new)
    assert unseal(rotated, after, 2) == b"kv"
    with pytest.raises(chunk_seal.SealError, match="a key that is not in"):
        unseal(rotated, before, 2)


@pytest.mark.parametrize("lines", [[], ["# nothing"], ["abc"], ["z" * 64], ["00" * 31]])
def test_a_file_that_is_no_keyring_is_refused_without_its_content(tmp_path: Path, lines: list[str]) -> None:
    write(tmp_path / "kv.keys", *lines)
    with pytest.raises(chunk_seal.KeyringError) as refused:
        chunk_seal.Keyring(tmp_path / "kv.keys")
    assert str(tmp_path / "kv.keys") in str(refused.value)
    assert not any(line in str(refused.value) for line in lines if line)


def test_a_keyring_that_goes_bad_while_it_is_used_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kv.keys"
    write(path, secrets.token_hex(32))
    used = chunk_seal.Keyring(path)
    sealed = seal(used, b"kv")
    write(path, "no key")
    assert unseal(used, sealed, 2) == b"kv"
    path.unlink()
    assert unseal(used, seal(used, b"kv"), 2) == b"kv"
