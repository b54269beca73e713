"""Upstream servers in ``cwm.yaml``: what becomes of them, and what a mistake says."""

from __future__ import annotations

import contextlib
import json
import re
import string
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.upstream import (
    NAME_PATTERN,
    RESERVED_NAMES,
    Bounds,
    Credentials,
    Override,
    Selection,
    TokenExchange,
    UpstreamSpec,
    is_reserved_uri,
)
from cwm.settings import SettingsError, load
from cwm.settings.load import settings_from
from cwm.settings.upstreams import ExchangeFields, OverrideFields, SelectionFields, UpstreamFields
from cwm.transport.mcp.context.resources import context_templates
from cwm.transport.mcp.contract.resources import resource_templates, resources

PAGE = (Path(__file__).parents[2] / "docs" / "upstreams.md").read_text()
FILE = Path("cwm.yaml")


def read(document: str, **environ: str) -> tuple[UpstreamSpec, ...]:
    return settings_from(document.encode(), environ, FILE).upstreams


def one(fields: str, **environ: str) -> UpstreamSpec:
    (spec,) = read(f"upstreams: {{docs: {fields}}}", **environ)
    return spec


def mistake(document: str, **environ: str) -> str:
    with pytest.raises(SettingsError) as refused:
        read(document, **environ)
    return str(refused.value)


def test_without_a_word_on_upstreams_there_are_none() -> None:
    assert read("") == read("upstreams:") == read("upstreams: {}") == ()


def test_an_upstream_needs_no_more_than_a_url() -> None:
    assert one("{url: 'https://docs.example/mcp'}") == UpstreamSpec("docs", url="https://docs.example/mcp")


def test_an_upstream_needs_no_more_than_a_program() -> None:
    assert one("{command: some-server}") == UpstreamSpec("docs", command=("some-server",))


@pytest.mark.parametrize(
    "fields",
    [
        "{command: npx, args: [-y, x]}",
        "{command: [npx, -y, x]}",
        "{command: [npx, -y], args: [x]}",
    ],
)
def test_arguments_stand_in_either_place(fields: str) -> None:
    assert one(fields).command == ("npx", "-y", "x")


def test_every_field_reaches_the_upstream() -> None:
    over_http = one(
        """{
          url: 'https://docs.example/mcp', headers: {X-Key: k}, credentials: exchange,
          exchange: {token_url: 'https://id.example/t', client_id: c, client_secret: s, audience: a, scope: o},
          stateless: true, connect_seconds: 1.5, call_seconds: 7, total_seconds: 70,
          message_bytes: 2048, list_items: 5, list_bytes: 4096,
          tools: {pin: true, allow: [read_*], deny: [read_all], override: {echo: {name: say, description: Says it.}}},
          resources: {deny: ['file:*']}, prompts: {allow: []}, instructions: false,
        }"""
    )
    started = one("{command: x, env: {A: b}, cwd: ~/there}")

    assert over_http == UpstreamSpec(
        name="docs",
        url="https://docs.example/mcp",
        headers={"X-Key": "k"},
        credentials=Credentials.EXCHANGE,
        exchange=TokenExchange("https://id.example/t", "c", "s", "a", "o"),
        stateless=True,
        connect_seconds=1.5,
        call_seconds=7,
        total_seconds=70,
        bounds=Bounds(2048, 5, 4096),
        pin_tools=True,
        tools=Selection(("read_*",), ("read_all",), {"echo": Override("say", "Says it.")}),
        resources=Selection(deny=("file:*",)),
        prompts=Selection(allow=()),
        instructions=False,
    )
    assert started.env == {"A": "b"}
    assert started.cwd == str(Path("~/there").expanduser())


def test_upstreams_keep_the_order_of_the_file() -> None:
    specs = read("upstreams: {zeta: {command: a}, alpha: {command: b}}")

    assert [spec.name for spec in specs] == ["zeta", "alpha"]


def test_a_key_with_nothing_after_it_is_as_good_as_none() -> None:
    assert one("{url: 'https://docs.example', headers: , tools: {allow: }}") == one(
        "{url: 'https://docs.example'}"
    )


def test_secrets_come_from_the_environment() -> None:
    spec = one(
        """{url: 'https://x', headers: {X-Key: '${KEY}', X-Both: 'a ${KEY}-${OTHER} b'}, credentials: exchange,
            exchange: {token_url: 'https://y', client_id: c, client_secret: '${KEY}'}}""",
        KEY="1",
        OTHER="2",
    )

    assert spec.headers == {"X-Key": "1", "X-Both": "a 1-2 b"}
    assert spec.exchange is not None
    assert spec.exchange.client_secret == "1"
    assert one("{command: x, env: {A: '${KEY}'}}", KEY="1").env == {"A": "1"}


def test_what_a_variable_holds_is_not_filled_in_again() -> None:
    assert one("{command: x, env: {A: '${KEY}'}}", KEY="${OTHER}", OTHER="2").env == {"A": "${OTHER}"}


def test_a_doubled_dollar_keeps_the_braces() -> None:
    assert one("{command: x, env: {A: '$${KEY} costs $5 or $$'}}").env == {"A": "${KEY} costs $5 or $$"}


def test_a_variable_that_an_upstream_takes_is_not_unknown() -> None:
    document = b"upstreams: {docs: {command: x, env: {A: '${CWM_DOCS_KEY}'}}}"

    settings = settings_from(document, {"CWM_DOCS_KEY": "1", "CWM_PROT": "2"}, FILE)

    assert settings.unknown_env == ("CWM_PROT",)


HTTPS = "url: 'https://docs.example/mcp'"
IN_THE_CLEAR = "{token_url: 'http://id.example', client_id: c, client_secret: hunter2}"
EXCHANGE = "token_url: 'https://id.example/t', client_id: c"


@pytest.mark.parametrize(
    ("fields", "place", "wrong"),
    [
        ("", "docs", "needs a 'url' or a 'command'"),
        ("{}", "docs", "needs a 'url' or a 'command'"),
        ("3", "docs", "must hold fields by name"),
        ("{url: 'https://x', command: y}", "docs", "and not both"),
        ("{url: docs.example}", "docs.url", "http:// or https://"),
        ("{url: 'ftp://docs.example'}", "docs.url", "http:// or https://"),
        ("{url: 'https://'}", "docs.url", "http:// or https://"),
        ("{url: 'https://a b'}", "docs.url", "http:// or https://"),
        ("{url: 'https://a:99999'}", "docs.url", "http:// or https://"),
        ("{url: 'https://user:hunter2@docs.example'}", "docs.url", "user or a password"),
        ("{command: npx -y x}", "docs.command", "[npx, -y, some-server]"),
        ("{command: []}", "docs.command", "start with a program"),
        ("{command: ['']}", "docs.command", "start with a program"),
        ("{command: x, args: y}", "docs.args", "must be a list"),
        ("{command: x, args: [1]}", "docs.args.0", "put it in quotes"),
        ("{command: x, env: {A: 1}}", "docs.env.A", "put it in quotes"),
        ("{command: x, env: {A: true}}", "docs.env.A", "put it in quotes"),
        ("{command: x, env: {A=B: hunter2}}", "docs.env", "environment variable"),
        ("{command: x, env: {A: '${KEY}'}}", "docs.env.A", "the variable KEY is not set"),
        ("{command: x, env: {A: '${KEY'}}", "docs.env.A", "names no variable"),
        ("{command: x, env: {A: '${hunter2!}'}}", "docs.env.A", "names no variable"),
        ("{command: x, headers: {A: b}}", "docs", "'headers' is for an upstream with a 'url'"),
        ("{command: x, credentials: forward}", "docs", "'credentials' is for an upstream with a 'url'"),
        (f"{{{HTTPS}, env: {{A: b}}}}", "docs", "'env' is for an upstream with a 'command'"),
        (f"{{{HTTPS}, args: [a]}}", "docs", "'args' is for an upstream with a 'command'"),
        (f"{{{HTTPS}, cwd: /}}", "docs", "'cwd' is for an upstream with a 'command'"),
        (f"{{{HTTPS}, headers: {{X-Key: '${{KEY}}'}}}}", "docs.headers.X-Key", "the variable KEY is not set"),
        (f"{{{HTTPS}, headers: {{X-Key: 'hunter2 '}}}}", "docs.headers.X-Key", "one line"),
        (f'{{{HTTPS}, headers: {{X-Key: "hunter2\\r\\nEvil: 1"}}}}', "docs.headers.X-Key", "one line"),
        (f"{{{HTTPS}, headers: {{X Key: a}}}}", "docs.headers", "cannot be a header name"),
        (f"{{{HTTPS}, headers: {{X-Key: a, x-key: b}}}}", "docs.headers", "'x-key' stands here twice"),
        (f"{{{HTTPS}, headers: {{Mcp-Session-Id: a}}}}", "docs.headers", "by the connection itself"),
        (f"{{{HTTPS}, headers: {{Host: a}}}}", "docs.headers", "by the connection itself"),
        (f"{{{HTTPS}, credentials: everyone}}", "docs.credentials", "'none', 'forward' or 'exchange'"),
        (f"{{{HTTPS}, credentials: exchange}}", "docs", "need each other"),
        (f"{{{HTTPS}, exchange: {{{EXCHANGE}, client_secret: hunter2}}}}", "docs", "need each other"),
        (
            f"{{{HTTPS}, credentials: forward, headers: {{authorization: hunter2}}}}",
            "docs",
            "static 'Authorization' header",
        ),
        ("{url: 'http://docs.example', credentials: forward}", "docs", "needs an https:// url"),
        (
            f"{{{HTTPS}, credentials: exchange, exchange: {IN_THE_CLEAR}}}",
            "docs.exchange",
            "'token_url' must be https://",
        ),
        (
            f"{{{HTTPS}, credentials: exchange, exchange: {{{EXCHANGE}}}}}",
            "docs.exchange.client_secret",
            "required",
        ),
        (
            f"{{{HTTPS}, credentials: exchange, exchange: {{{EXCHANGE}, client_secret: '${{KEY}}'}}}}",
            "docs.exchange.client_secret",
            "the variable KEY is not set",
        ),
        (f"{{{HTTPS}, connect_seconds: 0}}", "docs.connect_seconds", "greater than 0"),
        (f"{{{HTTPS}, call_seconds: .inf}}", "docs.call_seconds", "finite"),
        (f"{{{HTTPS}, stateless: perhaps}}", "docs.stateless", "boolean"),
        (f"{{{HTTPS}, tools: [a]}}", "docs.tools", "must hold fields by name"),
        (f"{{{HTTPS}, tools: {{allow: read_*}}}}", "docs.tools.allow", "must be a list"),
        (f"{{{HTTPS}, prompts: {{hide: [a]}}}}", "docs.prompts.hide", "is not a field of an upstream"),
        (
            f"{{{HTTPS}, tools: {{override: {{echo: {{name: say it}}}}}}}}",
            "docs.tools.override.echo.name",
            "match",
        ),
        (
            f"{{{HTTPS}, tools: {{override: {{a: {{name: x}}, b: {{name: x}}}}}}}}",
            "docs.tools",
            "the name 'x' twice",
        ),
        (f"{{{HTTPS}, transport: http}}", "docs.transport", "is not needed"),
        ("{command: x, type: stdio}", "docs.type", "is not needed"),
        (f"{{{HTTPS}, header: {{}}}}", "docs.header", "is not a field of an upstream"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_place_and_no_secret(fields: str, place: str, wrong: str) -> None:
    said = mistake(f"upstreams: {{docs: {fields}}}", NOT_SET="hunter2")

    assert said.startswith(f"upstreams.{place} in cwm.yaml: ")
    assert wrong in said
    assert "hunter2" not in said
    assert "\n" not in said
    assert said.endswith(".")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "127.9.9.9"])
def test_credentials_may_go_in_the_clear_where_they_stay_on_this_machine(host: str) -> None:
    assert one(f"{{url: 'http://{host}:9/mcp', credentials: forward}}").credentials is Credentials.FORWARD


@pytest.mark.parametrize("name", [*sorted(RESERVED_NAMES), "Docs", "a_b", "9a", "", "a" * 33, '"a\\n"', "1"])
def test_a_name_that_tools_could_not_begin_with_is_refused(name: str) -> None:
    written = name or "''"

    assert "upstreams." in mistake(f"upstreams: {{{written}: {{command: x}}}}")


def test_no_upstream_is_named_as_a_host_of_our_own_uris() -> None:
    templates = [*resource_templates(), *context_templates()]
    uris = [*(str(each.uri) for each in resources()), *(each.uri_template for each in templates)]

    assert {re.split("[/{]", uri.partition("://")[2])[0] for uri in uris} <= RESERVED_NAMES
    assert all(is_reserved_uri(uri.replace("{?cursor}", "?cursor=a")) for uri in uris)


def test_a_list_of_upstreams_is_refused() -> None:
    assert "by name" in mistake("upstreams: [{url: 'https://x'}]")


def test_the_key_of_other_clients_is_refused_with_the_place_where_it_belongs() -> None:
    said = mistake("mcpServers: {docs: {command: npx}}")

    assert "mcpServers" in said
    assert "under 'upstreams'" in said


@pytest.mark.parametrize(
    "document",
    [
        "upstreams: {docs: {url: 'https://x'}, docs: {url: 'https://y'}}",
        "http: {port: 1}\nhttp: {port: 2}",
    ],
)
def test_what_stands_twice_is_refused(document: str) -> None:
    assert "stands here twice" in mistake(document)


def test_a_shared_part_may_be_merged_in_and_overridden() -> None:
    document = """\
upstreams:
  one: &shared {url: 'https://one.example', stateless: true}
  two: {<<: *shared, url: 'https://two.example'}
"""

    assert [(spec.url, spec.stateless) for spec in read(document)] == [
        ("https://one.example", True),
        ("https://two.example", True),
    ]


@pytest.mark.parametrize(
    "document",
    [
        "upstreams: {docs: {headers: {X: 'hunter2",
        "upstreams:\n  docs:\n    headers:\n      X: *hunter2\n",
        "upstreams: {docs: {headers: {X: !hunter2 a}}}",
        "upstreams:\n\tdocs: hunter2",
        "upstreams: {docs: {env: {A: 2026-13-45}}} # hunter2",
        "[" * 5000 + "hunter2",
        "upstreams: \0 hunter2",
    ],
)
def test_a_file_that_is_no_yaml_is_refused_without_showing_a_line_of_it(document: str) -> None:
    said = mistake(document)

    assert said.startswith("cwm.yaml cannot be read as YAML: ")
    assert "hunter2" not in said
    assert "\n" not in said


def test_a_bracket_that_is_never_closed_is_named() -> None:
    assert mistake("http:\n  port: [87").endswith("expected ',' or ']', but got '<stream end>'.")


def test_a_file_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(SettingsError, match="byte 9 is not UTF-8"):
        settings_from(b"# hunter2\xff", {}, FILE)


def test_a_folder_in_the_files_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load({}, tmp_path)


def test_secrets_of_upstreams_are_in_no_representation() -> None:
    document = b"""upstreams:
      a: {command: x, env: {A: hunter2}}
      b: {url: 'https://b', headers: {X: hunter2}, credentials: exchange,
          exchange: {token_url: 'https://y', client_id: c, client_secret: hunter2}}
    """

    settings = settings_from(document, {"KEY": "hunter2"}, FILE)

    assert len(settings.upstreams) == 2
    assert "hunter2" not in repr(settings)


NAMES = st.from_regex(NAME_PATTERN.replace("$", r"\Z")).filter(lambda name: name not in RESERVED_NAMES)
VISIBLE = st.text(st.sampled_from(string.ascii_letters + string.digits + "{}$ '\":#&*!-~"), max_size=20)


@given(st.dictionaries(NAMES, st.lists(st.text(st.characters(codec="ascii", categories=["L"])), min_size=1)))
def test_any_names_and_programs_survive_the_file(programs: dict[str, list[str]]) -> None:
    commands = {name: ["run", *arguments] for name, arguments in programs.items()}
    document = yaml.safe_dump({"upstreams": {name: {"command": c} for name, c in commands.items()}})

    assert {spec.name: list(spec.command) for spec in read(document)} == commands


@given(VISIBLE.map(lambda text: f"x{text}x"))
def test_any_secret_comes_through_its_variable_unchanged(secret: str) -> None:
    spec = one("{url: 'https://x', headers: {X-Key: 'Bearer ${KEY}'}}", KEY=secret)

    assert spec.headers == {"X-Key": f"Bearer {secret}"}


@given(VISIBLE)
def test_any_text_can_be_written_literally(text: str) -> None:
    document = json.dumps({"upstreams": {"docs": {"command": "x", "env": {"A": text.replace("${", "$${")}}}})

    assert read(document)[0].env == {"A": text}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(sorted(UpstreamFields.model_fields)) | st.text(max_size=8) | st.integers(),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_anything_else_is_a_settings_error_or_an_upstream(fields: object) -> None:
    document = yaml.safe_dump({"upstreams": {"docs": fields}})

    with contextlib.suppress(SettingsError):
        assert [spec.name for spec in read(document)] == ["docs"]


def test_the_example_of_the_page_is_read_and_uses_every_field() -> None:
    example = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0]
    variables = set(re.findall(r"\$\{(\w+)\}", example))

    specs = read(example, **dict.fromkeys(variables, "secret"))

    assert len(specs) == len(yaml.safe_load(example)["upstreams"])
    used = {
        name
        for model in (UpstreamFields, ExchangeFields, SelectionFields, OverrideFields)
        for name in model.model_fields
    }
    assert [name for name in sorted(used) if f"{name}:" not in example] == []


@pytest.mark.parametrize("model", [UpstreamFields, ExchangeFields, SelectionFields, OverrideFields])
def test_the_page_has_a_row_for_every_field(model: type[UpstreamFields]) -> None:
    assert [name for name in model.model_fields if f"| `{name}` |" not in PAGE] == []
