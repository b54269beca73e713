"""Shortening texts: whole sentences, whole lines, whole characters, and how much more there is."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.preview import Unit
from cwm.domain.tool_policy import PreviewKind
from cwm.services.results.preview.text.sentences import sentences
from cwm.services.results.preview.text.styles import Style, style_of
from cwm.services.results.preview.text.texts import Text
from tests.services.results.preview.values import LETTERS, LONG_TEXT, is_shortening

LOG = "".join(f"2026-11-21T10:00:{n % 60:02} INFO worker-{n % 4} took {n} ms\n" for n in range(4000))
CODE = "def one(a: int) -> int:\n    return a + 1\n\n\nclass Two:\n    x = {\n        'a': 1,\n    }\n" * 100
STORY = "".join(f"On day {n} Dr. Osei walked to the sea and back. " for n in range(400))
CHINESE = "今天天气很好，我们去公园散步。" * 400


@given(LONG_TEXT | st.text(LETTERS, min_size=200), st.sampled_from(PreviewKind), st.integers(0, 600))
def test_a_shortened_text_is_made_of_the_whole_one_and_says_how_much_is_gone(
    whole: str, kind: PreviewKind, limit: int
) -> None:
    short = Text(whole, kind, ("failed", "明日")).shorten(limit)
    if short is None:
        return
    assert is_shortening(whole, short.text)
    assert len(short.text) <= max(limit, 40)
    assert 0 <= short.shown < short.total
    assert f"[{short.total - short.shown:,} " in short.text


def test_no_more_than_allowed_is_kept_of_a_text_that_is_short_enough() -> None:
    assert Text("short").shorten(5) is None


def test_prose_is_cut_after_sentences_and_the_rest_is_counted() -> None:
    short = Text(STORY).shorten(300)
    assert short is not None
    assert short.text.startswith("On day 0 Dr. Osei walked to the sea and back. On day 1 ")
    assert short.unit is Unit.WORDS
    assert short.total == len(STORY.split())
    assert short.text.endswith(f" … [{short.total - short.shown:,} more words]")


def test_sentences_with_a_keyword_are_shown_wherever_they_are() -> None:
    text = STORY + "Suddenly the Alarm rang. " + STORY * 4
    short = Text(text, PreviewKind.AUTO, ("alarm",)).shorten(300)
    assert short is not None
    assert short.text.startswith("On day 0 ")
    assert " … Suddenly the Alarm rang." in short.text


def test_a_keyword_far_into_a_huge_text_is_found() -> None:
    text = STORY * 20 + "Only here the needle is named. " + STORY
    short = Text(text, PreviewKind.EXTRACT, ("needle",)).shorten(200)
    assert short is not None
    assert "Only here the needle is named." in short.text


def test_a_script_without_spaces_is_cut_after_its_sentences_and_counted_in_characters() -> None:
    short = Text(CHINESE).shorten(100)
    assert short is not None
    assert short.unit is Unit.CHARACTERS
    assert "。 … [" in short.text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Dr. Smith paid $3.50 to Acme Inc. on Jan. 5. He left at 5 p.m. and e.g. met Mr. Doe. Really?", 3),
        ("这是第一句。他说：“你好。”然后走了。价格是3.5元吗？", 4),
        ("今日は天気がいい。明日はどうですか？雨でしょう。", 3),
        ("هذه هي الجملة الأولى. هل هذه جملة ثانية؟ نعم!", 3),
        ("यह पहला वाक्य है। यह दूसरा वाक्य है।", 2),
        ("А.С. Пушкин писал стихи. Да! Это так.", 3),
        ("See https://x.org/a.b?c=1. It works!", 2),
    ],
    ids=["english", "chinese", "japanese", "arabic", "hindi", "russian", "url"],
)
def test_sentences_end_where_readers_of_the_language_say(text: str, count: int) -> None:
    spans = sentences(text)
    assert len(spans) == count
    assert "".join(text[a:b] for a, b in spans).replace(" ", "") == text.replace(" ", "")


def test_logs_show_how_they_began_and_more_of_how_they_ended() -> None:
    short = Text(LOG).shorten(2000)
    assert short is not None
    first, last = short.text.split(f"\n… [{4000 - short.shown:,} more lines] …\n")
    assert LOG.startswith(first + "\n")
    assert LOG.endswith(last + "\n")
    assert len(last) > len(first) > 0
    assert short.unit is Unit.LINES


def test_lines_with_a_keyword_are_shown_between_the_ends_of_a_log() -> None:
    log = LOG + "2026-11-21T11:00:00 ERROR out of memory\n2026-11-21T11:00:01 ERROR killed\n" + LOG
    short = Text(log, PreviewKind.AUTO, ("error",)).shorten(800)
    assert short is not None
    assert (
        " more lines] …\n2026-11-21T11:00:00 ERROR out of memory\n2026-11-21T11:00:01 ERROR killed\n…\n"
        in short.text
    )
    assert is_shortening(log, short.text)
    assert log.endswith(short.text.rpartition("\n…\n")[2] + "\n")


def test_a_head_is_the_first_lines_and_a_tail_the_last() -> None:
    head, tail = Text(LOG, PreviewKind.HEAD).shorten(500), Text(LOG, PreviewKind.TAIL).shorten(500)
    assert head is not None
    assert tail is not None
    assert LOG.startswith(head.text.rpartition("\n")[0] + "\n")
    assert head.text.endswith(" more lines]")
    assert LOG.endswith(tail.text.partition("\n")[2] + "\n")
    assert tail.text.startswith("[")


def test_code_is_cut_between_lines() -> None:
    short = Text(CODE).shorten(300)
    assert short is not None
    assert short.unit is Unit.LINES
    assert CODE.startswith(short.text.rpartition("\n")[0] + "\n")


@pytest.mark.parametrize(
    ("text", "style"),
    [
        (LOG, Style.ENDS),
        (CODE, Style.HEAD),
        ("id,name,city\n" + "17,Osei,Accra\n" * 100, Style.HEAD),
        (STORY, Style.EXTRACT),
        (STORY.replace(". ", ".\n"), Style.EXTRACT),
        (CHINESE, Style.EXTRACT),
        ("[INFO] started\n[ERROR] it broke\n\tat com.example.Main\n" * 9, Style.ENDS),
    ],
    ids=["log", "code", "table", "prose", "lines of prose", "chinese", "levels"],
)
def test_the_kind_of_a_text_is_told_from_the_text(text: str, style: Style) -> None:
    assert style_of(text, PreviewKind.AUTO) is style


@given(st.text(st.sampled_from("ae\u0301\u0308👩\u200d🚀🏽🇩🇪🇫🇷क्षि"), min_size=120), st.integers(30, 120))
def test_no_character_that_a_reader_sees_is_torn(whole: str, limit: int) -> None:
    short = Text(whole).shorten(limit)
    if short is None:
        return
    shown, _, _ = short.text.partition(" … [")
    after = whole[len(shown) :] if whole.startswith(shown) else "x"
    if shown and shown[-1] != "\u200d" and len(shown) > 32:
        assert not unicodedata.category(after[0]).startswith("M")
        assert after[0] != "\u200d"
