"""Everything a principal can ask for, as one value that the faces are given."""

from __future__ import annotations

from dataclasses import dataclass

from cwm.domain.operators import Operators
from cwm.services.access.refusals import Refusals
from cwm.services.access.tenant_keys import TenantKeys
from cwm.services.access.usage import Usage
from cwm.services.audit.journal import Journal
from cwm.services.audit.reading import ReadAudit
from cwm.services.context.shared_context import SharedContext
from cwm.services.engines.survey import Survey
from cwm.services.health.examine import Examine
from cwm.services.health.inspect import Inspect
from cwm.services.health.live import Live
from cwm.services.kv.turn_sums import TurnSums
from cwm.services.moves.drain import Drain
from cwm.services.moves.move import Move
from cwm.services.moves.upgrades import Upgrades
from cwm.services.results.delivery import Delivery
from cwm.services.results.query import QueryResult
from cwm.services.results.references import ByReference
from cwm.services.results.results import Results
from cwm.services.sessions.end_session import EndSession
from cwm.services.sessions.open_session import OpenSession
from cwm.services.turns.finding.calling_conversation import CallingConversation
from cwm.services.turns.reading.branches import Branches
from cwm.services.turns.reading.compactions import Compactions
from cwm.services.turns.reading.compare import Compare
from cwm.services.turns.reading.history import History
from cwm.services.turns.reading.search import Search
from cwm.services.turns.sending.generate import Generate
from cwm.services.upstreams.offers import OffersOfUpstreams
from cwm.services.upstreams.tasks import UpstreamTasks
from cwm.services.windows.browse import Browse
from cwm.services.windows.clone import Clone
from cwm.services.windows.delete import Delete
from cwm.services.windows.extend import Extend
from cwm.services.windows.freeze import Freeze
from cwm.services.windows.outlook import Outlook
from cwm.services.windows.rename import Rename
from cwm.services.windows.resume import Resume
from cwm.services.windows.share import Share
from cwm.services.windows.thaw import Thaw


@dataclass(frozen=True, slots=True)
class Services:
    open_session: OpenSession
    generate: Generate
    history: History
    branches: Branches
    compare: Compare
    compactions: Compactions
    calling_conversation: CallingConversation
    search: Search
    freeze: Freeze
    thaw: Thaw
    resume: Resume
    clone: Clone
    share: Share
    rename: Rename
    extend: Extend
    outlook: Outlook
    move: Move
    survey: Survey
    drain: Drain
    upgrades: Upgrades
    delete: Delete
    end_session: EndSession
    browse: Browse
    inspect: Inspect
    live: Live
    results: Results
    delivery: Delivery
    by_reference: ByReference
    query_result: QueryResult
    shared_context: SharedContext
    offers_of_upstreams: OffersOfUpstreams
    upstream_tasks: UpstreamTasks
    journal: Journal
    read_audit: ReadAudit
    turn_sums: TurnSums
    examine: Examine
    keys: TenantKeys
    usage: Usage
    refusals: Refusals
    operators: Operators
