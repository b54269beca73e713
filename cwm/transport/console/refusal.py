"""The page of an error: what went wrong, and what to do next."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from structlog.contextvars import get_contextvars

from cwm.domain.errors import CwmError, ErrorKind
from cwm.transport.console.access import form
from cwm.transport.console.pages import Page, rendered
from cwm.transport.http.errors import STATUS, error_headers, log_detail

_NEXT_STEPS: Final = {
    ErrorKind.INVALID: "Go back, or begin anew from the list: a link to a later page of a list is valid for a while only.",
    ErrorKind.NOT_FOUND: "It may have been deleted or have expired, or it is somebody else's. The lists show what you may see.",
    ErrorKind.UNAUTHENTICATED: "Nothing was done. Sign in, then do it again.",
    ErrorKind.FORBIDDEN: "Ask whoever runs this gateway for the scope that it needs.",
    ErrorKind.CONFLICT: "Nothing was done. Go back and look at what it is now.",
    ErrorKind.LIMITED: "Nothing was done. Wait a moment, then do it again.",
    ErrorKind.STORAGE: "Try again; if it stays, `cwm doctor` on the gateway's machine says what is wrong and how to fix it.",
    ErrorKind.TOO_LARGE: "Nothing is lost: `cwm turns show` and the tools read it in parts.",
    ErrorKind.UNAVAILABLE: "Try again; if it stays, `cwm doctor` on the gateway's machine says what is wrong and how to fix it.",
    ErrorKind.TIMEOUT: "Try again; if it stays, `cwm doctor` on the gateway's machine says what is wrong and how to fix it.",
}
_SEND_AGAIN: Final = "Go back, load that page again, and send the form once more."
_REPORT: Final = "The gateway's log has more under this request's id."


def refusal(
    error: CwmError, request: Request, status: int | None = None, trace: str | None = None
) -> Response:
    """The page of an error. ``status`` overrides the one of its kind; ``trace`` is the address of the request's trace."""
    log_detail(error)
    status = status or STATUS[error.kind]
    values = {
        "error": error,
        "status": status,
        "next_step": _next_step(error),
        "trace": trace,
        "request_id": get_contextvars().get("request_id", ""),
    }
    answer = rendered(Page("error.html", values, status), request)
    answer.headers.update({name.decode(): value.decode() for name, value in error_headers(error)})
    return answer


def _next_step(error: CwmError) -> str:
    if error.context.get("reason") == form.REASON:
        return _SEND_AGAIN
    return _NEXT_STEPS.get(error.kind, _REPORT)
