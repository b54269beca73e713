"""Names that were refused, told apart: an attack of one class or another, or a mistake."""

from __future__ import annotations

import pytest

from cwm.domain.errors import CwmError
from cwm.domain.injection import Injection, injection_of
from cwm.domain.names import require_session_id, require_tags, require_window_name
from cwm.domain.origin import MAX_USER_AGENT_CHARS, safe_user_agent


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("../../etc/passwd", Injection.PATH_TRAVERSAL),
        ("..\\windows", Injection.PATH_TRAVERSAL),
        ("%2e%2e%2fetc", Injection.PATH_TRAVERSAL),
        ("a/..", Injection.PATH_TRAVERSAL),
        ("..", Injection.PATH_TRAVERSAL),
        ("/etc/passwd", Injection.PATH_TRAVERSAL),
        ("~/.ssh/id", Injection.PATH_TRAVERSAL),
        ("C:\\boot.ini", Injection.PATH_TRAVERSAL),
        ("w\x00.txt", Injection.PATH_TRAVERSAL),
        ("w; rm -rf", Injection.SHELL),
        ("w|cat", Injection.SHELL),
        ("`id`", Injection.SHELL),
        ("$(id)", Injection.SHELL),
        ("${IFS}", Injection.SHELL),
        ("a&&b", Injection.SHELL),
        ("'; DROP TABLE windows; --", Injection.SQL),
        ("' OR '1'='1", Injection.SQL),
        ("1 or 1=1", Injection.SQL),
        ("x UNION ALL SELECT secret", Injection.SQL),
        ("delete from windows", Injection.SQL),
        ("select this, drop it into that", Injection.SQL),
        ("from here update", None),
        ("my window", None),
        ("notes.txt", None),
        ("über", None),
        ("select the best", None),
        ("a" * 200, None),
        ("", None),
    ],
)
def test_a_refused_value_is_classed(value: str, kind: Injection | None) -> None:
    assert injection_of(value) == kind


def test_a_refusal_knows_the_class_and_neither_keeps_nor_tells_the_value() -> None:
    for require in (require_session_id, require_window_name, lambda value: require_tags([value, "fine"])):
        with pytest.raises(CwmError) as refused:
            require("$(reboot)")
        assert refused.value.injection is Injection.SHELL
        assert "reboot" not in str(vars(refused.value))
        assert "shell" not in str(refused.value.as_dict())


def test_a_user_agent_is_written_down_short_and_without_control_characters() -> None:
    assert safe_user_agent("agent/1.0 (x)") == "agent/1.0 (x)"
    assert safe_user_agent("a\x1b[2Jb\nc") == "a?[2Jb?c"
    assert safe_user_agent("é" * 500) == "é" * MAX_USER_AGENT_CHARS
    assert safe_user_agent("  ") is None
