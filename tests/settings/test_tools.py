"""Result budgets and policies of tools in ``cwm.yaml``: what becomes of them, and what a mistake says."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.budgets import Budgets, References
from cwm.domain.tool_policy import CachePolicy, PreviewKind, SharingScope, ToolPolicy
from cwm.settings import SettingsError
from cwm.settings.load import settings_from
from cwm.settings.tools import CacheFields, ReferenceFields, ResultsFields, ToolFields

PAGE = (Path(__file__).parents[2] / "docs" / "result-budgets.md").read_text()
FILE = Path("cwm.yaml")


def read(document: str) -> Budgets:
    return settings_from(document.encode(), {}, FILE).budgets


def policy(fields: str, results: str = "{}") -> ToolPolicy:
    return read(f"results: {results}\ntools: {{files_read: {fields}}}").policies.of("files_read")


def mistake(document: str) -> str:
    with pytest.raises(SettingsError) as refused:
        read(document)
    return str(refused.value)


@pytest.mark.parametrize("document", ["", "results:\ntools:", "results: {}\ntools: {}"])
def test_without_a_word_on_results_the_budgets_are_the_usual_ones(document: str) -> None:
    assert read(document) == Budgets()


def test_every_default_can_be_set() -> None:
    budgets = read(
        """results: {enabled: false, max_tokens: 5000, preview_tokens: 900, ttl_seconds: 60, shared: true,
        window_tokens: unlimited, window_share: 0.5, references: {enabled: false, most: 2, most_bytes: 10}}"""
    )

    assert not budgets.enabled
    assert budgets.policies.default == ToolPolicy(5_000, 900, result_ttl_seconds=60, shared=True)
    assert (budgets.window_tokens, budgets.window_share) == (None, 0.5)
    assert budgets.references == References(enabled=False, most=2, most_bytes=10)


def test_every_field_reaches_the_policy_of_a_tool() -> None:
    assert policy(
        """{max_tokens: unlimited, preview_tokens: 700, preview: tail, fields: [id, 'items[*].name'],
        keywords: [error], references: true, shared: true, ttl_seconds: 60.5,
        cache: {ttl_seconds: 30, key: [path], scope: session}}"""
    ) == ToolPolicy(
        max_tokens=None,
        preview_tokens=700,
        preview=PreviewKind.TAIL,
        fields=("id", "items[*].name"),
        keywords=("error",),
        references=True,
        shared=True,
        result_ttl_seconds=60.5,
        cache=CachePolicy(30, ("path",), SharingScope.SESSION),
    )


def test_what_a_tool_leaves_out_is_as_for_all_tools() -> None:
    assert policy("{keywords: [error]}", "{max_tokens: 4000, shared: true}") == ToolPolicy(
        max_tokens=4_000, shared=True, keywords=("error",)
    )
    assert policy("") == ToolPolicy()


def test_a_preview_takes_no_more_than_the_tool_may_say() -> None:
    assert policy("{max_tokens: 600}").preview_tokens == 600
    assert read("results: {max_tokens: 600}").policies.default.preview_tokens == 600
    assert policy("{max_tokens: unlimited}", "{max_tokens: 600}").preview_tokens == 600


def test_a_tool_goes_by_its_own_name_before_any_pattern_and_by_the_first_pattern() -> None:
    policies = read(
        """tools: {'files_*': {max_tokens: 600}, '*_read': {max_tokens: 700}, files_read: {max_tokens: 800}}"""
    ).policies

    tools = ("files_read", "files_list", "notes_read", "echo")
    assert [policies.of(tool).max_tokens for tool in tools] == [800, 600, 700, 10_000]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("results: 3", "results in cwm.yaml: must hold fields by name."),
        ("results: {max_token: 5}", "results.max_token in cwm.yaml: is not a field of 'results'."),
        ("results: {keywords: [a]}", "results.keywords in cwm.yaml: is not a field of 'results'."),
        (
            "results: {max_tokens: many}",
            "results.max_tokens in cwm.yaml: must be a whole number of at least 500 tokens, or 'unlimited'.",
        ),
        (
            "results: {max_tokens: true}",
            "results.max_tokens in cwm.yaml: must be a whole number of at least 500 tokens, or 'unlimited'.",
        ),
        (
            "results: {preview_tokens: unlimited}",
            "results.preview_tokens in cwm.yaml: must be a whole number of at least 500 tokens.",
        ),
        (
            "results: {max_tokens: 600, preview_tokens: 601}",
            "results in cwm.yaml: 'preview_tokens' is more than 'max_tokens'.",
        ),
        ("results: {window_share: 1.5}", "results.window_share in cwm.yaml: "),
        ("results: {references: {most: 0}}", "results.references.most in cwm.yaml: "),
        ("tools: [a]", "'tools' in cwm.yaml must contain policies by tool name."),
        ("tools: {1: {}}", "tools.1 in cwm.yaml: must be the name of a tool, or a pattern"),
        ("tools: {echo: 3}", "tools.echo in cwm.yaml: must hold fields by name."),
        ("tools: {echo: {maximum: 3}}", "tools.echo.maximum in cwm.yaml: is not a field of a tool's policy."),
        (
            "tools: {echo: {preview: middle}}",
            "tools.echo.preview in cwm.yaml: input should be 'auto', 'page', ",
        ),
        ("tools: {echo: {fields: a}}", "tools.echo.fields in cwm.yaml: must be a list."),
        (
            "tools: {echo: {fields: ['a[']}}",
            "tools.echo.fields.0 in cwm.yaml: the path 'a[' can't be read from ",
        ),
        ("tools: {echo: {keywords: ['']}}", "tools.echo.keywords.0 in cwm.yaml: "),
        ("tools: {echo: {ttl_seconds: 0}}", "tools.echo.ttl_seconds in cwm.yaml: "),
        ("tools: {echo: {cache: {key: [a]}}}", "tools.echo.cache.ttl_seconds in cwm.yaml: is required."),
    ],
)
def test_a_mistake_names_its_place_and_what_is_wrong(document: str, said: str) -> None:
    assert mistake(document).startswith(said)


FIELDS = sorted(ToolFields.model_fields) + sorted(ResultsFields.model_fields)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_anything_else_is_a_settings_error_or_a_policy(fields: object) -> None:
    for document in ({"results": fields}, {"tools": {"echo": fields}}, {"tools": fields}):
        with contextlib.suppress(SettingsError):
            assert read(yaml.safe_dump(document)).policies.of("echo").preview_tokens >= 500


def test_the_example_of_the_page_is_read_and_uses_every_field() -> None:
    example = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0]

    assert read(example).policies.by_name.keys() == yaml.safe_load(example)["tools"].keys()
    used = {
        name
        for model in (ResultsFields, ReferenceFields, ToolFields, CacheFields)
        for name in model.model_fields
    }
    assert [name for name in sorted(used) if f"{name}:" not in example] == []


@pytest.mark.parametrize("model", [ResultsFields, ReferenceFields, ToolFields, CacheFields])
def test_the_page_has_a_row_for_every_field(model: type[ResultsFields]) -> None:
    assert [name for name in model.model_fields if f"| `{name}` |" not in PAGE] == []
