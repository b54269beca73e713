"""Everything a principal can ask for, as one value that the faces are given."""

from __future__ import annotations

from dataclasses import dataclass

from cwm.services.audited import Journal
from cwm.services.browse import Browse
from cwm.services.clone import Clone
from cwm.services.delete import Delete
from cwm.services.delivery import Delivery
from cwm.services.end_session import EndSession
from cwm.services.freeze import Freeze
from cwm.services.generate import Generate
from cwm.services.inspect import Inspect
from cwm.services.open_session import OpenSession
from cwm.services.query_result import QueryResult
from cwm.services.references import ByReference
from cwm.services.results import Results
from cwm.services.shared_context import SharedContext
from cwm.services.thaw import Thaw


@dataclass(frozen=True, slots=True)
class Services:
    open_session: OpenSession
    generate: Generate
    freeze: Freeze
    thaw: Thaw
    clone: Clone
    delete: Delete
    end_session: EndSession
    browse: Browse
    inspect: Inspect
    results: Results
    delivery: Delivery
    by_reference: ByReference
    query_result: QueryResult
    shared_context: SharedContext
    journal: Journal
