"""Find the runs of an SQL store, a page at a time. No page reads all runs.

The runs of a query are in lanes, one for each status. An index has the runs of a lane in the order of the
query, so a page reads the beginning of each lane. What else a query asks for is checked for these runs.
Each lane has a condition that only one index serves, so no database chooses another one.

No index has both the order and a range of times or ids. If few runs are in a range, they are the lane. If
there are many, a page soon finds enough of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from effectflow.checkpoint.errors import CorruptCheckpoint
from effectflow.checkpoint.lease import deaths_seen_once
from effectflow.checkpoint.run_info import RunInfo, RunQuery, RunStatus
from effectflow.stores._sql import (
    COLUMNS,
    IN_ORDER,
    LARGEST,
    Query,
    Steps,
    info_of,
    key_of,
    marks,
    readable_runs,
)

_ROWS_PER_READ = 500
"""A search is done in pieces, so that none keeps the database busy for long."""

_FEW = 4000
"""As many runs are read and sorted within 20 ms. If more of a million runs are in a range, a page of a
hundred is among about 25,000 of them, and usually among much fewer: old runs were updated long ago."""

_CLOCKS_DIFFER = 600.0
"""A run seems to be updated before it was created if the clock of its creator was ahead. It is found all
the same if that was less than these seconds."""

_ORDER = "ORDER BY created_at DESC, run_id"


def find(query: RunQuery) -> Steps[list[RunInfo]]:
    """Return runs, as `CheckpointStore.find`."""
    # The database cannot check whether an owner is alive.
    checks_owners, is_dead = query.resumable or query.crashed, deaths_seen_once()
    lanes = yield from _lanes(query)
    found: list[RunInfo] = []
    place, count = query.after, min(_ROWS_PER_READ, query.limit or _ROWS_PER_READ)
    while lanes and (query.limit is None or len(found) < query.limit):
        [rows] = yield [_page(lanes, query, place, count)]
        if query.run_id is not None and rows:
            # This raises if the run is damaged.
            info_of(rows[0])
        for row, info in readable_runs(rows):
            if not (checks_owners and info.lease and info.lease.is_held(row[-1], is_dead)):
                found.append(info)
        if len(rows) < count:
            break
        # From the last run on, not by position, because runs come and go between the queries.
        place, count = (rows[-1][4], rows[-1][1]), _ROWS_PER_READ
    return found[: query.limit]


def damaged_runs() -> Steps[list[str]]:
    """Return the ids of damaged runs, as `CheckpointStore.damaged_runs`."""
    damaged: list[str] = []
    last = 0
    while True:
        text = f"SELECT {COLUMNS} FROM @runs WHERE number > ? ORDER BY number LIMIT ?"
        [rows] = yield [Query(text, (last, _ROWS_PER_READ))]
        for row in rows:
            try:
                info_of(row)
            except CorruptCheckpoint as error:
                damaged.append(error.run_id)
        if len(rows) < _ROWS_PER_READ:
            return sorted(damaged)
        last = rows[-1][0]


def _page(
    lanes: Sequence[Query], query: RunQuery, after: tuple[float, str] | None, limit: int
) -> Query:
    """Return the query for the next runs of all lanes, but for the liveness of their owners."""
    begins, checks = _beginning(query, after), _checks(query)
    pages = [f"SELECT {COLUMNS} FROM {lane.text}{begins.text}" for lane in lanes]
    values = [value for lane in lanes for value in (*lane.parameters, *begins.parameters)]
    values += [*checks.parameters, limit]
    if len(pages) == 1:
        return Query(f"{pages[0]}{checks.text} {_ORDER} LIMIT ?", values)
    parts = [
        f"SELECT * FROM ({page}{IN_ORDER}) AS lane{number}" for number, page in enumerate(pages)
    ]
    # The inner limit keeps the order, and the checks out of the lanes: in one whose runs all fail them,
    # the database would look for its first run to the end.
    merged = f"{' UNION ALL '.join(parts)} {_ORDER} LIMIT {LARGEST}"
    return Query(f"SELECT * FROM ({merged}) AS merged WHERE 1 = 1{checks.text} LIMIT ?", values)


def _beginning(query: RunQuery, after: tuple[float, str] | None) -> Query:
    """Return the condition for the part of a lane where the page begins."""
    text, parameters = "", list[object]()
    if query.updated_before is not None:
        text = " AND created_at < ?"
        parameters.append(query.updated_before + _CLOCKS_DIFFER)
    if after is not None:
        text += " AND created_at <= ? AND (created_at < ? OR run_id > ?)"
        parameters += [after[0], *after]
    return Query(text, parameters)


def _checks(query: RunQuery) -> Query:
    """Return the conditions that are checked for each run of the lanes."""
    checks: list[tuple[str, object]] = [
        ("workflow = ?", query.workflow),
        ("parent = ?", query.parent),
        ("tenant = ?", query.tenant),
        ("instr(run_id, ?) = 1", query.prefix or None),
        ("updated_at >= ?", query.updated_since),
        ("updated_at < ?", query.updated_before),
    ]
    asked = [(text, value) for text, value in checks if value is not None]
    return Query("".join(f" AND {text}" for text, _ in asked), [value for _, value in asked])


# Lanes: tables, each with a condition.


def _lanes(query: RunQuery) -> Steps[Sequence[Query]]:
    """Return lanes that have all runs of a query, each of them in one."""
    if query.run_id is not None:
        return [Query("@runs WHERE key = ?", (key_of(query.run_id),))]
    statuses = yield from _statuses(query)
    if query.prefix:
        [few] = yield from _few([_with_prefix(query.prefix)])
        if few is not None:
            # Not by the index of statuses.
            text = f"{few.text} AND status || '' IN ({marks(statuses)})"
            return [Query(text, (*few.parameters, *statuses))]
    lanes = {status: _lane(query, status) for status in statuses}
    if query.updated_since is not None or query.updated_before is not None:
        settled = [status for status in statuses if status != RunStatus.RUNNING]
        ranges = yield from _few([_updated(query, status) for status in settled])
        lanes |= {status: few for status, few in zip(settled, ranges, strict=True) if few}
    return [*lanes.values()]


def _statuses(query: RunQuery) -> Steps[list[str]]:
    """Return the statuses of the runs of a query, also those that are unknown to this version."""
    if query.crashed:
        wanted = (query.statuses or {RunStatus.RUNNING}) & {RunStatus.RUNNING}
    else:
        wanted = query.statuses or frozenset(RunStatus)
    known = [str(status) for status in sorted(wanted) if not (query.resumable and status.has_ended)]
    if query.statuses or query.crashed:
        return known
    [rows] = yield [_STATUSES]
    return known + [status for (status,) in rows if status not in {*RunStatus}]


_STATUSES = Query(
    "WITH RECURSIVE statuses (status) AS (SELECT min(status) FROM @runs UNION ALL"
    " SELECT (SELECT min(runs.status) FROM @runs WHERE runs.status > statuses.status)"
    " FROM statuses WHERE status IS NOT NULL)"
    " SELECT status FROM statuses WHERE status IS NOT NULL"
)
"""Each status costs one search of an index."""


def _lane(query: RunQuery, status: str) -> Query:
    """Return the lane of the runs of one parent, tenant or workflow with this status, or of all."""
    for column, value in (("parent", query.parent), ("tenant", query.tenant)):
        if value:
            text = (
                f"@runs WHERE (substr({column}, 1, 64) || ':' || status)"
                f" = (substr(?, 1, 64) || ':' || ?) AND {column} <> ''"
            )
            if query.workflow is None:
                return Query(text, (value, status))
            # In the index, so that no run of another workflow is read.
            return Query(f"{text} AND workflow = ?", (value, status, query.workflow))
    if query.workflow is not None:
        lane = f"{query.workflow}:{status}"
        return Query("@runs WHERE (workflow || ':' || status) = ?", (lane,))
    return Query("@runs WHERE status = ?", (status,))


def _few(ranges: Sequence[Query]) -> Steps[list[Query | None]]:
    """Return lanes of the smallest ranges, which have few runs together, and None for the others."""
    counts = yield [
        Query(
            f"SELECT count(*) FROM (SELECT 1 FROM @runs WHERE {text} LIMIT {_FEW + 1}) AS counted",
            parameters,
        )
        for text, parameters in ranges
    ]
    few: list[Query | None] = [None] * len(ranges)
    spare = _FEW
    for count, number in sorted((count, number) for number, [(count,)] in enumerate(counts)):
        spare -= count
        if spare >= 0:
            text, parameters = ranges[number]
            chosen = f"WITH few AS MATERIALIZED (SELECT number AS one FROM @runs WHERE {text})"
            lane = f"({chosen} SELECT one FROM few) AS few CROSS JOIN @runs WHERE number = one"
            few[number] = Query(lane, parameters)
    return few


def _updated(query: RunQuery, status: str) -> Query:
    """Return the condition for the runs with a status, but not of running ones, updated in a time."""
    text, parameters = "status = ?", [status]
    if query.updated_since is not None:
        text, parameters = f"{text} AND settled_at >= ?", [*parameters, query.updated_since]
    if query.updated_before is not None:
        text, parameters = f"{text} AND settled_at < ?", [*parameters, query.updated_before]
    return Query(text, parameters)


def _with_prefix(prefix: str) -> Query:
    """Return the condition for the runs whose ids begin with this, and perhaps for some more."""
    begins = "substr(run_id, 1, 64) {} substr(?, 1, 64)"
    end = _after_all(prefix)
    if end is None:
        return Query(begins.format(">="), (prefix,))
    return Query(f"{begins.format('>=')} AND {begins.format('<=')}", (prefix, end))


def _after_all(prefix: str) -> str | None:
    """Return the first text after all those that begin with this, or None if no text is after them."""
    kept = prefix.rstrip(chr(0x10FFFF))
    if not kept:
        return None
    # Codes from 0xD800 to 0xDFFF are no characters.
    code = ord(kept[-1]) + 1
    return kept[:-1] + chr(0xE000 if code == 0xD800 else code)
