"""Programs that are run to their end: what they are given of our environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from cwm.stack.tool import run_tool

pytestmark = pytest.mark.slow


async def test_a_tool_is_not_given_what_is_withheld_but_what_pip_reaches_its_index_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached_by = ["PIP_INDEX_URL", "https_proxy", "HTTPS_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"]
    for name in ["NOTES_TOKEN", "PIPE_TOKEN", *reached_by]:
        monkeypatch.setenv(name, "x")
    lines: list[str] = []

    await run_tool(
        ["env"], tmp_path / "log", lines.append, withheld=["NOTES_TOKEN", "PIPE_TOKEN", *reached_by]
    )

    given = {line.partition("=")[0] for line in lines}
    assert given.isdisjoint({"NOTES_TOKEN", "PIPE_TOKEN"})
    assert given >= set(reached_by)
