"""The index that finds windows by terms (a tag, a model, a circle) and by the three-character pieces of their words.

Terms other than circles, which may change, and pieces are stored together as numbers (grams), so that an index finds windows that have several of them. A
number includes the tenant, so that tenants share no entry. Both databases can do this without extensions: Postgres
with an array in a GIN index, SQLite with words of hex digits in FTS5. Numbers may collide, so a search also checks the
window itself.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    delete,
    func,
    insert,
    select,
    text,
    update,
)

from cwm.adapters.sql.rows import insert_into
from cwm.adapters.sql.tables.window_lists import window_counts, window_grams, window_search, window_terms
from cwm.domain.window import Window

ALL: Final = ""
"""The term of every window."""

_GRAM_CHARS: Final = 3
# More numbers do not narrow a search further.
_MOST_ASKED: Final = 16
# A single term is found by its own index instead.
_TERMS_TO_ASK: Final = 2
# Keeps a search from matching across the end of the name.
_GAP: Final = "\x1f"
# Begins a term among the pieces.
_TERM: Final = "\x1e"

_COUNTED: Final = select(window_counts.c.term, window_counts.c.windows).where(
    window_counts.c.tenant == bindparam("of_tenant"),
    window_counts.c.term.in_(bindparam("of_terms", expanding=True)),
)
# Shares of the most common numbers, from ANALYZE; a number that is not among them is rarer.
_COMMON: Final = """
    WITH known AS MATERIALIZED (
        SELECT most_common_elems::text::int[] AS numbers, most_common_elem_freqs AS shares FROM pg_stats
        WHERE schemaname = ANY (current_schemas(false)) AND tablename = 'window_grams' AND attname = 'grams'
        LIMIT 1
    ), common AS (
        SELECT unnest(numbers) AS number, unnest(shares[1 : array_length(numbers, 1)]) AS share FROM known
    ), asked AS (
        SELECT number, coalesce(common.share, 0) AS share
        FROM unnest(CAST(:grams AS int[])) AS asked (number) LEFT JOIN common USING (number)
    )
"""
# Searches for the five rarest numbers: common ones take most of GIN's time.
RAREST: Final = f"""
    {_COMMON}, rarest AS (SELECT number FROM asked ORDER BY share LIMIT 5)
    SELECT array_agg(number) FROM rarest
"""  # noqa: S608 - ours
_ABOUT_ON_POSTGRES: Final = text(f"""
    {_COMMON}
    SELECT min(share) * (SELECT reltuples FROM pg_class WHERE oid = to_regclass('window_grams')) FROM asked
""")  # noqa: S608 - ours
# Size of the sample: ids from the oldest window's on, because FTS5 reads them in this order.
_SAMPLE: Final = 10_000
_SAMPLED_ON_SQLITE: Final = text(
    "SELECT count(*) FROM window_grams WHERE window_grams MATCH :grams AND rowid < :before"
)
_FOUND_ON_POSTGRES: Final = text(f"SELECT id FROM window_grams WHERE grams @> ({RAREST})")  # noqa: S608 - ours
_FOUND_ON_SQLITE: Final = text("SELECT rowid AS id FROM window_grams WHERE window_grams MATCH :grams")
_ADD_TO_FTS: Final = text("INSERT INTO window_grams(rowid, grams) VALUES (:id, :grams)")
_DROP_FROM_FTS: Final = text(
    "INSERT INTO window_grams(window_grams, rowid, grams) VALUES ('delete', :id, :grams)"
)


def tag_term(tag: str) -> str:
    return f"t{tag}"


def model_term(model: str) -> str:
    return f"m{model}"


def circle_term(circle: str) -> str:
    return f"c{circle}"


def terms_of(window: Window) -> list[str]:
    """The window's terms, sorted, so that every transaction locks them in the same order."""
    return sorted({circle_term(window.circle), *_lasting_terms(window)})


def _lasting_terms(window: Window) -> set[str]:
    return {model_term(window.model), *map(tag_term, window.tags)}


def exact(tag: str) -> str:
    """A tag in hex between marks, because SQLite's LIKE ignores case."""
    return f"<{tag.encode(errors='surrogatepass').hex()}>"


def words_of(window: Window) -> str:
    return f"{window.name}{_GAP}{window.description}".casefold()


def grams_of(tenant: str, words: str, terms: Iterable[str]) -> list[int]:
    """Signed 32-bit numbers of terms and of the pieces of words; words shorter than a piece have none."""
    seed = zlib.crc32(tenant.encode())
    pieces = {words[at : at + _GRAM_CHARS] for at in range(len(words) - _GRAM_CHARS + 1)}
    pieces.update(f"{_TERM}{term}" for term in terms)
    return sorted(zlib.crc32(piece.encode("utf-8", "surrogatepass"), seed) - 2**31 for piece in pieces)


def search_values(window: Window) -> dict[str, Any]:
    return {
        "tenant": window.tenant,
        "name": window.name,
        "model": window.model,
        "created_at": window.created_at,
        "token_count": window.token_count,
        "total_size_bytes": window.total_size_bytes,
        "tags": " ".join(exact(tag) for tag in window.tags),
        "words": words_of(window),
        "circle": window.circle,
    }


def term_values(window: Window) -> list[dict[str, Any]]:
    return [
        {
            "tenant": window.tenant,
            "term": term,
            "created_at": window.created_at,
            "name": window.name,
            "token_count": window.token_count,
            "total_size_bytes": window.total_size_bytes,
        }
        for term in terms_of(window)
    ]


def gram_values(connection: Connection, search_id: int, window: Window) -> dict[str, Any]:
    grams = grams_of(window.tenant, words_of(window), _lasting_terms(window))
    return {"id": search_id, "grams": grams if _is_postgres(connection) else spelled(grams)}


def add_grams(connection: Connection, values: list[dict[str, Any]]) -> None:
    connection.execute(insert(window_grams) if _is_postgres(connection) else _ADD_TO_FTS, values)


def enlist(connection: Connection, window: Window) -> None:
    """Add a new window to the index. The caller calls :func:`count` at the end of the transaction."""
    row = insert(window_search).values(search_values(window)).returning(window_search.c.id)
    search_id = connection.execute(row).scalar_one()
    connection.execute(insert(window_terms), term_values(window))
    add_grams(connection, [gram_values(connection, search_id, window)])


def resize(connection: Connection, window: Window) -> None:
    """Update the window's size, the only listed value that is unknown before its freeze ends."""
    size = {"total_size_bytes": window.total_size_bytes}
    connection.execute(update(window_search).where(_is_listed(window)).values(size))
    connection.execute(update(window_terms).where(_is_termed(window)).values(size))


def delist(connection: Connection, window: Window) -> None:
    """Remove the window from the index. On Postgres a foreign key cascades over its grams."""
    connection.execute(delete(window_terms).where(_is_termed(window)))
    removed = delete(window_search).where(_is_listed(window)).returning(window_search.c.id)
    search_ids = connection.execute(removed).scalars().all()
    for search_id in () if _is_postgres(connection) else search_ids:
        connection.execute(_DROP_FROM_FTS, gram_values(connection, search_id, window))


def count(connection: Connection, window: Window, change: int) -> None:
    """Count an added (1) or removed (-1) window.

    Transactions that change a tenant's windows wait for each other here. It is the last step of a transaction, so
    that this lock is held for a short time and no transaction waits for another lock while it has this one.
    """
    rows = [{"tenant": window.tenant, "term": term, "windows": change} for term in (ALL, *terms_of(window))]
    insertion = insert_into(connection, window_counts).values(rows)
    total = window_counts.c.windows + insertion.excluded.windows
    keys = [window_counts.c.tenant, window_counts.c.term]
    connection.execute(insertion.on_conflict_do_update(index_elements=keys, set_={"windows": total}))
    if change < 0:
        unused = and_(
            window_counts.c.tenant == window.tenant,
            window_counts.c.term.in_(terms_of(window)),
            window_counts.c.windows <= 0,
        )
        connection.execute(delete(window_counts).where(unused))


def counts(connection: Connection, tenant: str, terms: Iterable[str]) -> dict[str, int]:
    """The number of the tenant's windows with each term, 0 included."""
    all_terms = [ALL, *terms]
    rows = connection.execute(_COUNTED, {"of_tenant": tenant, "of_terms": all_terms})
    return dict.fromkeys(all_terms, 0) | {row.term: row.windows for row in rows}


def search_grams(tenant: str, words: str, terms: Sequence[str]) -> list[int] | None:
    """The numbers of windows that may contain ``words`` and have the terms; None if there are too few to search by."""
    pieces = grams_of(tenant, words, ())
    if not pieces and len(terms) < _TERMS_TO_ASK:
        return None
    every = max(1, len(pieces) // _MOST_ASKED)
    return [*pieces[::every], *grams_of(tenant, "", terms)]


def estimate(connection: Connection, pieces: list[int]) -> float:
    """The estimated number of windows with these pieces of words; 0 if unknown."""
    if _is_postgres(connection):
        return float(connection.execute(_ABOUT_ON_POSTGRES, {"grams": pieces}).scalar_one())
    oldest, newest = _ids_of_every_tenant(connection)
    parameters = {"grams": gram_parameter("sqlite", pieces), "before": oldest + _SAMPLE}
    sampled = connection.execute(_SAMPLED_ON_SQLITE, parameters).scalar_one()
    return float(sampled * max(1.0, (newest - oldest) / _SAMPLE))


def gram_parameter(dialect: str, grams: list[int]) -> Any:
    """The numbers in the form of :func:`holding`'s parameter."""
    return grams if dialect == "postgresql" else " AND ".join(f'"{gram}"' for gram in spelled(grams).split())


def holding(dialect: str) -> ColumnElement[bool]:
    """Matches rows of ``window_search`` with all numbers of the parameter ``grams``, or with the rarest of them."""
    ids = _FOUND_ON_POSTGRES if dialect == "postgresql" else _FOUND_ON_SQLITE
    return window_search.c.id.in_(ids.columns(window_grams.c.id))


def spelled(grams: list[int]) -> str:
    """The numbers as words for FTS5, which splits at spaces."""
    return " ".join(f"{gram + 2**31:x}" for gram in grams)


def _ids_of_every_tenant(connection: Connection) -> tuple[int, int]:
    """The oldest and the newest id, over all tenants. Two subqueries, because for both at once SQLite reads all ids."""
    ends = (select(end(window_search.c.id)).scalar_subquery() for end in (func.min, func.max))
    oldest, newest = connection.execute(select(*ends)).one()
    return oldest, newest


def _is_listed(window: Window) -> ColumnElement[bool]:
    return and_(window_search.c.tenant == window.tenant, window_search.c.name == window.name)


def _is_termed(window: Window) -> ColumnElement[bool]:
    return and_(
        window_terms.c.tenant == window.tenant,
        window_terms.c.term.in_(terms_of(window)),
        window_terms.c.created_at == window.created_at,
        window_terms.c.name == window.name,
    )


def _is_postgres(connection: Connection) -> bool:
    return connection.dialect.name == "postgresql"
