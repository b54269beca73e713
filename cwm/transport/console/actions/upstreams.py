"""What can be done to an upstream server: accept what changed of its tools."""

from __future__ import annotations

from typing import Final

from cwm.domain.errors import InvalidParameterError
from cwm.domain.upstream_tools import SeenTool
from cwm.transport.console.access.form import Form
from cwm.transport.console.actions.two_steps import ADMIN, Action, Field, Step
from cwm.transport.console.pages import link
from cwm.transport.console.views import Asked

_SECTION: Final = "Upstreams"
_SHOWN_CHARS: Final = 600
_DIGEST_CHARS: Final = 12


async def _accepting(asked: Asked) -> Step:
    name = asked.part("upstream")
    changed = await _changed(asked)
    digests = [each.version.digest for each in changed]
    if not changed:
        blocked = "Nothing of it has changed."
        return Step(f"Accept tools of {name}", [], (name,), link("upstreams"), blocked=blocked)
    return Step(
        f"Accept tools of {name}",
        [
            "Agents are shown these tools as they are now, and this gateway no longer marks them as changed. A model reads their words as instructions: read them first.",
            "The digest covers all that a model learns of a tool: name, title, description, schemas, annotations. What changes later waits again.",
        ],
        (name, *digests),
        link("upstreams"),
        (
            Field(
                "tool",
                "Accept",
                kind="boxes",
                choices=[(each.version.digest, _words(each)) for each in changed],
            ),
        ),
    )


async def _accept(asked: Asked, sent: Form) -> str:
    digests = set(sent.texts("tool"))
    tools = [each.version.tool for each in await _changed(asked) if each.version.digest in digests]
    if not tools:
        raise InvalidParameterError("Choose at least one tool.", field="tool")
    await asked.services.offers_of_upstreams.accept(asked.principal, asked.part("upstream"), tools)
    return link("upstreams", notice="accepted")


async def _changed(asked: Asked) -> list[SeenTool]:
    """CWM-1003 for an upstream that is not configured."""
    for each in await asked.services.offers_of_upstreams(asked.principal):
        if each.health.name == asked.part("upstream"):
            return list(each.changed)
    raise InvalidParameterError("There is no such upstream.", field="upstream")


def _words(each: SeenTool) -> str:
    version = each.version
    description = version.description[:_SHOWN_CHARS] or "(no description)"
    return f"{version.tool} ({version.digest[:_DIGEST_CHARS]}): {description}"


UPSTREAMS: Final = {
    "accept": Action(
        "Accept", _SECTION, ADMIN, _accepting, _accept, fits=lambda offers: bool(offers.changed)
    ),
}
