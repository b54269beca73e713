"""``make audit`` with an advisory database of ours: what is found fails, what cannot be asked is said and does not."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

pytestmark = pytest.mark.slow

ROOT: Final = Path(__file__).parents[2]
PINNED: Final = f"uvicorn==0.41.0 --hash=sha256:{'0' * 64}\n"


class Advisories(ThreadingHTTPServer):
    """Tells of the releases in ``vulnerable``; ``answers`` is how many requests it answers at all."""

    def __init__(self, vulnerable: set[str], answers: int) -> None:
        super().__init__(("127.0.0.1", 0), _Query)
        self.vulnerable = vulnerable
        self.answers = answers


class _Query(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Advisories)
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.answers -= 1
        if server.answers < 0:
            self.close_connection = True
            return
        name = asked["package"]["name"]
        told = json.dumps({"vulns": [_advisory(name)]} if name in server.vulnerable else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        pass


def _advisory(name: str) -> dict[str, Any]:
    ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "99.0"}]}]
    return {
        "id": f"PYSEC-0-{name}",
        "summary": "bad",
        "details": "bad",
        "affected": [{"package": {"name": name, "ecosystem": "PyPI"}, "ranges": ranges}],
    }


@contextmanager
def advisories(*vulnerable: str, answers: int = 99) -> Iterator[str]:
    server = Advisories(set(vulnerable), answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/query"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def audit(folder: Path, url: str) -> subprocess.CompletedProcess[str]:
    """``make audit`` of one pinned release and of what else ``folder`` pins, without installing anything."""
    (folder / "requirements.lock").write_text(PINNED)
    program = (
        f"{Path(sys.executable).with_name('pip-audit')} -s osv --osv-url {url} --cache-dir {folder}/cache"
    )
    makefile, installed = ROOT / "Makefile", ".venv/.installed-dev"
    return subprocess.run(
        ["make", "-f", makefile, "-o", installed, "audit", f"PIP_AUDIT={program}", "KNOWN_SECONDS=120"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_releases_of_which_nothing_is_known_pass(tmp_path: Path) -> None:
    with advisories("requests") as url:
        run = audit(tmp_path, url)

    assert run.returncode == 0, run.stderr
    assert "No known vulnerabilities found" in run.stdout


def test_a_pinned_release_that_is_known_to_be_vulnerable_fails_and_is_named(tmp_path: Path) -> None:
    with advisories("requests", "uvicorn") as url:
        run = audit(tmp_path, url)

    assert run.returncode != 0
    assert "PYSEC-0-uvicorn" in run.stdout


@pytest.mark.parametrize(
    ("name", "pinned"),
    [
        *((f"requirements-{kind}.lock", PINNED.replace("uvicorn", "h11")) for kind in ("build", "dev", "gateway")),
        *((f"deploy/engine/requirements-{kind}.txt", "# pins\nh11==0.16.0\n") for kind in ("cpu", "gpu", "model")),
        ("deploy/engine/requirements-cpu.txt", "uvicorn==0.42.0\nh11==0.16.0+cpu\n"),
        ("requirements-dev.lock", PINNED.replace("uvicorn==0.41.0", "h11==0.16.0 ; sys_platform == 'win32'")),
    ],
)  # fmt: skip
def test_every_list_that_is_installed_anywhere_is_asked_about(tmp_path: Path, name: str, pinned: str) -> None:
    (tmp_path / "deploy" / "engine").mkdir(parents=True)
    (tmp_path / name).write_text(pinned)
    with advisories("requests", "h11") as url:
        run = audit(tmp_path, url)

    assert run.returncode != 0
    assert "PYSEC-0-h11" in run.stdout


def test_of_a_release_that_lists_pin_otherwise_each_is_asked_about(tmp_path: Path) -> None:
    (tmp_path / "requirements-dev.lock").write_text(PINNED.replace("0.41.0", "0.42.0"))
    with advisories("requests", "uvicorn") as url:
        run = audit(tmp_path, url)

    assert run.returncode != 0
    assert all(version in run.stdout for version in ("0.41.0", "0.42.0"))


def test_a_database_that_is_away_is_told_and_does_not_fail(tmp_path: Path) -> None:
    run = audit(tmp_path, "http://127.0.0.1:9/v1/query")

    assert run.returncode == 0, run.stderr
    assert "NOTHING WAS AUDITED" in run.stdout


def test_a_database_that_knows_of_nothing_is_not_taken_for_good_news(tmp_path: Path) -> None:
    with advisories() as url:
        run = audit(tmp_path, url)

    assert run.returncode == 0, run.stderr
    assert "NOTHING WAS AUDITED" in run.stdout


def test_a_database_that_stops_answering_is_told_and_does_not_fail(tmp_path: Path) -> None:
    with advisories("requests", answers=1) as url:
        run = audit(tmp_path, url)

    assert run.returncode == 0, run.stderr
    assert "CAME TO NO END" in run.stdout
