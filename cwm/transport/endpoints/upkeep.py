"""The operators' endpoint for reconciliation."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cwm.domain.errors import CwmError, InvalidParameterError, StorageWriteError
from cwm.domain.upkeep import Step
from cwm.services.access.limits import Limits
from cwm.services.upkeep.reconcile import Reconcile
from cwm.transport.http.counted import counted
from cwm.transport.http.errors import error_headers, status_of
from cwm.transport.http.request_keys import PRINCIPAL

_JSON: Final = "application/json"
_MOST_BYTES: Final = 1024


def routes(reconcile: Reconcile, limits: Limits) -> list[Route]:
    """``POST /reconcile`` with ``{"dry_run": bool}`` returns ``{"steps": [...]}``, the fields of ``Step`` each.

    CWM-1003 for an invalid body; CWM-4001 (retryable) while another gateway is reconciling. Only JSON is accepted,
    which pages of other origins cannot send without a CORS preflight.
    """

    async def steps_of(*, dry_run: bool) -> list[Step]:
        steps = await reconcile(dry_run=dry_run)
        if steps is None:
            raise StorageWriteError("Another gateway is reconciling; try again when it is done.")
        return steps

    async def look(request: Request) -> Response:
        try:
            principal = request.scope[PRINCIPAL]
            async with counted(limits, principal, request.method):
                if await _dry_run(request):
                    steps = await steps_of(dry_run=True)
                else:
                    async with reconcile.journal.entry(principal, "reconcile") as details:
                        steps = await steps_of(dry_run=False)
                        details.update(steps=len(steps))
        except CwmError as error:
            headers = {name.decode(): value.decode() for name, value in error_headers(error)}
            return JSONResponse(error.as_dict(), status_of(error), headers)
        return JSONResponse({"steps": [asdict(step) for step in steps]})

    return [Route("/reconcile", look, methods=["POST"])]


async def _dry_run(request: Request) -> bool:
    error = InvalidParameterError(
        'The body must be {"dry_run": true} or {"dry_run": false}, as JSON.', field="dry_run"
    )
    if request.headers.get("content-type", "").partition(";")[0].strip() != _JSON:
        raise error
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > _MOST_BYTES:
            raise error
    try:
        body: Any = json.loads(content)
    except (ValueError, RecursionError):
        raise error from None
    if not isinstance(body, dict) or set(body) != {"dry_run"} or not isinstance(body["dry_run"], bool):
        raise error
    return bool(body["dry_run"])
