"""Renders pages: templates, the headers that each page has, and the files that it loads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from cwm.domain import notation
from cwm.domain.visible_text import visible
from cwm.transport.console import wording
from cwm.transport.console.access.frame import frame
from cwm.transport.console.actions.notices import NOTICES

if TYPE_CHECKING:
    from jinja2 import Environment

PATH: Final = "/console"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    # Without an address of its own page, a browser sends forms with the origin "null".
    "referrer-policy": "same-origin",
}
_HERE: Final = Path(__file__).parent
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FOR_EVER: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Page:
    """What a view answers: a template, and what it shows."""

    template: str
    values: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True, slots=True)
class Download:
    """A file that a view answers instead of a page. ``text`` makes its contents; ``name`` has letters, digits and ``._-`` only."""

    name: str
    media_type: str
    text: Callable[[], str]


@dataclass(frozen=True, slots=True)
class Redirect:
    """What a form that did something answers: the address of the result's page."""

    address: str


@dataclass(frozen=True, slots=True)
class Asset:
    content: bytes
    media_type: str


def rendered(page: Page | Download | Redirect, request: Request) -> Response:
    if isinstance(page, Redirect):
        return RedirectResponse(page.address, 303)
    if isinstance(page, Download):
        return _download(page)
    notice = NOTICES.get(request.query_params.get("notice", ""))
    values = {**frame(request), "notice": notice, **page.values, "now": datetime.now(UTC)}
    text = _templates().get_template(page.template).render(values)
    return HTMLResponse(text, page.status, dict(HEADERS))


def _download(file: Download) -> Response:
    headers = {
        "content-disposition": f'attachment; filename="{file.name}"',
        "content-security-policy": POLICY,
    }
    # What is no Unicode text, half of a pair of surrogates, is written as its escape, which JSON understands.
    content = file.text().encode("utf-8", "backslashreplace")
    return Response(content, media_type=file.media_type, headers=headers)


def asset(name: str) -> Response | None:
    """The file of this name with its digest; None if there is none. A browser need not ask for it again."""
    found = _assets()[0].get(name)
    if found is None:
        return None
    headers = {"cache-control": _FOR_EVER, "content-security-policy": POLICY}
    return Response(found.content, media_type=found.media_type, headers=headers)


def link(*parts: str, **query: str | int | None) -> str:
    """The address of a page. Parts are ids and names, which need no quoting: :class:`Page` is shown for none that has other characters."""
    given = {name: value for name, value in query.items() if value not in {None, ""}}
    return "/".join((PATH, *parts)) + (f"?{urlencode(given)}" if given else "")


@cache
def _assets() -> tuple[Mapping[str, Asset], Mapping[str, str]]:
    """The files by their names with a digest, and those names by the plain ones."""
    assets, names = {}, {}
    for path in sorted((_HERE / "static").iterdir()):
        content = path.read_bytes()
        name = f"{path.stem}-{hashlib.sha256(content).hexdigest()[:12]}{path.suffix}"
        assets[name], names[path.name] = Asset(content, _TYPES[path.suffix]), name
    return assets, names


@cache
def _templates() -> Environment:
    # Imported on use: a gateway that nobody looks at needs no templates.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=_visible,
    )
    environment.filters |= {
        "number": wording.number,
        "size": notation.size,
        "took": wording.took,
        "lasting": wording.lasting,
        "period": wording.period,
        "iso": wording.iso,
        "whole_time": wording.whole_time,
        "component": wording.component,
    }
    environment.globals |= {
        "ago": wording.ago,
        "percent": wording.percent,
        "link": link,
        "static": lambda name: f"{PATH}/static/{_assets()[1][name]}",
        "causes": wording.CAUSES,
        "habits": wording.HABITS,
        "misses": wording.MISSES,
    }
    return environment


def _visible(value: Any) -> Any:
    """Whatever a template shows passes here, before it is escaped."""
    return visible(value) if type(value) is str else value
