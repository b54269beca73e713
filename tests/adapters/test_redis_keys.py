"""Keys of the shared store: one maker, and the tenant in each."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

import cwm.adapters.redis
from cwm.adapters.redis import keys

PACKAGE: Final = Path(cwm.adapters.redis.__file__).parent
# A literal with this in it would be a key, or the start of one.
PREFIX: Final = re.compile(r"cwm:[a-z]")
COMMANDS: Final = frozenset(
    {
        "get",
        "set",
        "mget",
        "delete",
        "exists",
        "hget",
        "hset",
        "hgetall",
        "hvals",
        "zrange",
        "zadd",
        "smembers",
    }
    | {
        "sadd",
        "zrem",
        "zrangebyscore",
        "publish",
        "subscribe",
        "expire",
        "pexpire",
        "incr",
        "incrby",
        "unlink",
    }
)

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(st.tuples(names, names), st.tuples(names, names))
def test_no_two_tenants_share_a_key(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (keys.tenant_key("result", *one) == keys.tenant_key("result", *other)) == (one == other)
    assert (keys.tenant_prefix("context", *one) == keys.tenant_prefix("context", *other)) == (one == other)


@given(st.tuples(names, names, names), st.tuples(names, names, names))
def test_names_with_a_colon_in_them_are_no_other_names(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    assert (keys.tenant_key("k", *one) == keys.tenant_key("k", *other)) == (one == other)


def test_no_key_is_spelled_outside_of_the_one_maker() -> None:
    for path in PACKAGE.rglob("*.py"):
        if path.name == "keys.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not PREFIX.search(node.value), f"{path.name}:{node.lineno} spells a key"


def test_no_command_is_given_a_key_that_was_put_together_on_the_spot() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            of_the_client = ast.unparse(node.func.value).endswith("client")
            if of_the_client and node.func.attr in COMMANDS and node.args:
                key = node.args[0]
                own = isinstance(key, ast.JoinedStr) and not _begins_with_a_made_one(key)
                assert not own, f"{path.name}:{node.lineno} {ast.unparse(key)}"
                assert not isinstance(key, ast.BinOp | ast.Constant), (
                    f"{path.name}:{node.lineno} {ast.unparse(key)}"
                )


def _begins_with_a_made_one(key: ast.JoinedStr) -> bool:
    first = key.values[0]
    return isinstance(first, ast.FormattedValue) and ast.unparse(first.value).startswith("_prefix(")
