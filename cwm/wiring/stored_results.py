"""Builds the store of whole tool results, which agents read later."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from cwm.adapters.local.query_engine import LocalQueryEngine
from cwm.adapters.local.secret import signing_secrets
from cwm.domain.cursor import Cursors
from cwm.ports.token_counter import TokenCounter
from cwm.services.audit.journal import Journal
from cwm.services.contents.contents import SharedContents
from cwm.services.results.query import QueryResult
from cwm.services.results.query_slots import QuerySlots
from cwm.services.results.results import Results
from cwm.settings import Settings
from cwm.wiring.shared_store import SharedStore

_PATTERNS_AT_ONCE: Final = 4


def stored_results(
    settings: Settings, shared: SharedStore, contents: SharedContents, counter: TokenCounter, journal: Journal
) -> Results:
    limits = settings.stored_results
    return Results(
        records=shared.results,
        contents=contents,
        tokens=counter,
        cursors=Cursors(signing_secrets(settings.isolation)),
        clock=journal.clock,
        quota_bytes=limits.quota_bytes(),
        cursor_ttl=timedelta(seconds=limits.cursor_ttl_seconds),
        journal=journal,
        whole_bytes=limits.whole_bytes(),
    )


def query_result(settings: Settings, results: Results) -> QueryResult:
    limits = settings.stored_results
    return QueryResult(
        results=results,
        engine=LocalQueryEngine(),
        jmespath_slots=QuerySlots(limits.queries_at_once, limits.query_wait_seconds),
        pattern_slots=QuerySlots(_PATTERNS_AT_ONCE, limits.query_wait_seconds),
    )
