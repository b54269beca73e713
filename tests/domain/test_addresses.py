"""What is taken out of the words that callers read."""

from __future__ import annotations

import time

import pytest

from cwm.domain.addresses import without_addresses, without_inner_addresses


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("vLLM cannot be reached at http://10.0.0.5:8000. Is it running?", "vLLM cannot be reached. Is it running?"),
        ("see (https://gpu-1.corp.example:8000/a?b=c), twice", "see ([hidden]), twice"),
        ("no '/srv/models/llama/config.json' here", "no '[hidden]' here"),
        ("connect to gpu.inner:8000 or [fd00::1]:80 or 10.1.2.3", "connect to [hidden] or [hidden] or [hidden]"),
        ("vLLM answered /v1/completions with 500 in 2.5 s at 12:30.", "vLLM answered /v1/completions with 500 in 2.5 s at 12:30."),
    ],
)  # fmt: skip
def test_an_address_is_not_shown_and_everything_else_is(text: str, shown: str) -> None:
    assert without_addresses(text) == shown


def test_of_an_engines_words_what_the_caller_named_stays() -> None:
    words = "cannot fetch https://pictures.example/a.png: http://10.0.0.1/x and http://gpu:8000 and /root/m say no"
    assert without_inner_addresses(words) == (
        "cannot fetch https://pictures.example/a.png: [hidden] and [hidden] and [hidden] say no"
    )


@pytest.mark.parametrize("word", ["a.", "http://", "1.", "/opt/", "x", " at ", "a.b.c.d.e.f.g.h.i.j.k.l:"])
def test_no_text_takes_long(word: str) -> None:
    begun = time.process_time()
    without_addresses(word * (2**18 // len(word)))
    assert time.process_time() - begun < 5
