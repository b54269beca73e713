"""Every regular expression of ``cwm`` takes time linear in its text, whoever wrote the text."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

import cwm
from tests.patterns import attack
from tests.patterns.found import ANYWHERE, Found, compiled_in, modules_of, patterns_of

pytestmark = pytest.mark.slow

LENGTH: Final = 1_000_000
# A pattern with quadratic backtracking takes hours of a processor for a million characters; the slowest linear one, two seconds.
PROCESSOR_SECONDS: Final = 20
PATIENCE_SECONDS: Final = 280
# What the expression of a pattern is built of where it is no constant: an example of each value.
VALUES: Final[Mapping[str, Mapping[str, Any]]] = {
    "cwm.adapters.telemetry.redaction:Redaction.hide": {"longest_first": ["secret-one", "secret"]},
    "cwm.adapters.vllm.turns.answers:renaming": {"served_name": "a-model"},
    "cwm.adapters.vllm.turns.messages.answer:renaming": {"served_name": "a-model"},
    "cwm.services.results.preview.text.texts:Text.__init__": {"words": "error|failed"},
    "cwm.settings.urls:_require": {"patterns": {"host": r"/[^,:]*|[\w.-]+(:\d{1,5})?"}, "name": "host"},
    "cwm.stack.tool:ToolFailedError.matching": {"pattern": "^ERROR|No space left"},
}
# Those that are applied to a short text only: its most characters.
BOUNDS: Final[Mapping[str, int]] = {}
MODULES: Final = modules_of(cwm)
PATTERNS: Final = patterns_of(MODULES, VALUES)


def slow_text(found: Found, *, length: int = LENGTH, seconds: int = PROCESSOR_SECONDS) -> str | None:
    """The text that the pattern takes more than ``seconds`` of a processor for; None if there is none."""
    assert found.text is not None
    asked = {
        "pattern": found.text.decode("latin-1") if isinstance(found.text, bytes) else found.text,
        "bytes": isinstance(found.text, bytes),
        "flags": found.flags,
        "anywhere": bool(found.uses & ANYWHERE),
        "whole": bool(found.uses - ANYWHERE),
        "length": length,
        "seconds": seconds,
    }
    ended = subprocess.run(
        [sys.executable, "-I", attack.__file__],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    if ended.returncode == 0:
        return None
    assert not ended.stderr, ended.stderr
    return ended.stdout.splitlines()[-1]


def name_of(found: Found) -> str:
    return f"{found.place}:{found.line}"


@pytest.mark.parametrize("found", PATTERNS, ids=name_of)
def test_a_pattern_reads_a_megabyte_made_against_it_in_linear_time(found: Found) -> None:
    assert found.text is not None, f"Give an example of what {found.place} is built of, in VALUES."
    assert slow_text(found, length=BOUNDS.get(found.place, LENGTH)) is None


def test_every_pattern_that_a_module_holds_is_among_those_tested() -> None:
    tested = {found.text for found in PATTERNS}
    assert {text: module for text, module in compiled_in(MODULES).items() if text not in tested} == {}
    assert len(PATTERNS) > 100


def test_no_exception_outlives_its_pattern() -> None:
    places = {found.place for found in PATTERNS}
    assert (VALUES.keys() | BOUNDS.keys()) - places == set()


def planted(folder: Path, code: str) -> list[Found]:
    """The patterns of a module with this code."""
    file = folder / "planted.py"
    file.write_text(f"import re\n{code}\n")
    spec = importlib.util.spec_from_file_location("planted", file)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return patterns_of([module], {})


@pytest.mark.parametrize(
    "code",
    [
        'P = re.compile(r"[\\w-]+/")\ndef f(t): return P.search(t)',
        'P = re.compile(r"\\b[a-z][a-z0-9+.-]*://")\ndef f(t): return P.sub("", t)',
        'P = (re.compile(r"\\beyJ[A-Za-z0-9_-]{8,}\\.[A-Za-z0-9_-]+"),)',
        'def f(t): return re.search(r"session[^.]*(?:unknown|expired)", t)',
        'P = re.compile(rb"\\s+$")\ndef f(t): return P.search(t)',
        'P = re.compile(r"(?:a+)+b")\ndef f(t): return P.fullmatch(t)',
        'P = re.compile(r"[0-9a-f:]*:[0-9a-f:.]*")\ndef f(t): return P.fullmatch(t)',
        'P = re.compile(r"<[^>]*>.*?</end>", re.DOTALL)\ndef f(t): return P.findall(t)',
    ],
)
def test_a_planted_pattern_with_quadratic_backtracking_is_found(tmp_path: Path, code: str) -> None:
    (found,) = planted(tmp_path, code)
    assert slow_text(found, seconds=3) is not None


@pytest.mark.parametrize(
    "code",
    [
        'P = re.compile(r"(?<![\\w-])[\\w-]++/")\ndef f(t): return P.search(t)',
        'P = re.compile(r"[\\w-]+/")\ndef f(t): return P.fullmatch(t)',
        'P = re.compile(rb"\\s")\ndef f(t): return P.sub(b"", t)',
    ],
)
def test_a_planted_pattern_that_is_linear_is_not(tmp_path: Path, code: str) -> None:
    (found,) = planted(tmp_path, code)
    assert slow_text(found) is None


def test_a_pattern_in_a_function_or_built_of_its_values_is_seen(tmp_path: Path) -> None:
    found = planted(
        tmp_path, 'def f(t, end): return re.match("a", t), [re.split(rf"{each}", t) for each in end]'
    )
    told: list[tuple[str, str | bytes | None, frozenset[str]]] = [
        (each.place, each.text, each.uses) for each in found
    ]
    assert told == [
        ("planted:f", "a", frozenset({"match"})),
        ("planted:f", None, frozenset({"split"})),
    ]


def test_a_function_of_re_by_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="write re"):
        planted(tmp_path, "from re import compile as made\nP = made('a')")
