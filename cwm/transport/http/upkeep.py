"""What operators ask of a running gateway: look after the whole now, or say what would be done."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cwm.domain.errors import CwmError, InvalidParameterError, StorageWriteError
from cwm.services.upkeep.reconcile import Reconcile
from cwm.transport.http.errors import status_of

_JSON: Final = "application/json"


def routes(reconcile: Reconcile) -> list[Route]:
    """``POST /reconcile`` with ``{"dry_run": bool}`` answers ``{"steps": [{action, tenant, subject, outcome, detail}]}``.

    CWM-1003 for another body; CWM-4001 (retryable) while another gateway is at it. Only JSON is taken, which no
    page of another origin can send unasked.
    """

    async def look(request: Request) -> Response:
        try:
            steps = await reconcile(dry_run=await _dry_run(request))
            if steps is None:
                raise StorageWriteError("Another gateway is reconciling; try again when it is done.")
        except CwmError as error:
            return JSONResponse(error.as_dict(), status_code=status_of(error))
        return JSONResponse({"steps": [asdict(step) for step in steps]})

    return [Route("/reconcile", look, methods=["POST"])]


async def _dry_run(request: Request) -> bool:
    wrong = InvalidParameterError(
        'The body is {"dry_run": true} or {"dry_run": false}, as JSON.', field="dry_run"
    )
    if request.headers.get("content-type", "").partition(";")[0].strip() != _JSON:
        raise wrong
    try:
        body: Any = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise wrong from None
    if not isinstance(body, dict) or set(body) != {"dry_run"} or not isinstance(body["dry_run"], bool):
        raise wrong
    return bool(body["dry_run"])
