"""The indexes by which the SQL stores find runs, whatever a query asks for."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import psycopg
import pytest

from effectflow.checkpoint import RunQuery, RunStatus
from effectflow.stores import PostgresStore, SqliteStore, _sql_find
from effectflow.stores._postgres_connection import settings
from effectflow.stores._postgres_schema import Dialect
from effectflow.stores._sql import Ended, Query, Rows, advance
from effectflow.stores._sqlite import _in_sqlite as in_sqlite
from effectflow.testing import store_conformance
from effectflow.testing.store_conformance import MakeStore

pytestmark = pytest.mark.anyio

FAILED = frozenset({RunStatus.FAILED})
ENDED = frozenset({RunStatus.COMPLETED, RunStatus.CANCELLED})

STATUS, WORKFLOW, PARENT, TENANT = (
    f"runs_of_{name}" for name in ("status", "workflow", "parent", "tenant")
)
SETTLED, IDS, NUMBER, KEY = "runs_settled", "runs_by_id", "number", "key"

QUERIES = {
    RunQuery(): {STATUS},
    RunQuery(after=(1.0, "r")): {STATUS},
    RunQuery(run_id="r"): {KEY},
    RunQuery(statuses=FAILED): {STATUS},
    RunQuery(statuses=ENDED): {STATUS},
    RunQuery(resumable=True): {STATUS},
    RunQuery(crashed=True): {STATUS},
    RunQuery(workflow="w"): {WORKFLOW, STATUS},
    RunQuery(workflow="w", statuses=ENDED): {WORKFLOW},
    RunQuery(workflow="w", crashed=True, after=(1.0, "r")): {WORKFLOW},
    RunQuery(parent="p", statuses=FAILED): {PARENT},
    RunQuery(parent="p", tenant="t", workflow="w", statuses=FAILED): {PARENT},
    RunQuery(tenant="t", statuses=FAILED): {TENANT},
    RunQuery(tenant="t", workflow="w", statuses=ENDED, after=(1.0, "r")): {TENANT},
    RunQuery(parent="", tenant="", statuses=FAILED): {STATUS},
}
"""The indexes that serve each query."""

RANGES = {
    RunQuery(updated_since=1.0): ({SETTLED, NUMBER, STATUS}, {SETTLED, STATUS}),
    RunQuery(updated_since=1.0, statuses=FAILED): ({SETTLED, NUMBER}, {SETTLED, STATUS}),
    RunQuery(updated_before=1.0, statuses=ENDED, after=(1.0, "r")): (
        {SETTLED, NUMBER},
        {SETTLED, STATUS},
    ),
    RunQuery(updated_since=1.0, updated_before=2.0, workflow="w", statuses=FAILED): (
        {SETTLED, NUMBER},
        {SETTLED, WORKFLOW},
    ),
    RunQuery(prefix="r", statuses=FAILED): ({IDS, NUMBER}, {IDS, STATUS}),
    RunQuery(prefix="r", workflow="w", statuses=ENDED): ({IDS, NUMBER}, {IDS, WORKFLOW}),
}
"""The same for those of a range of times or ids, if it has few runs and if it has many."""


def test_each_filter_is_tested() -> None:
    used = {
        field.name
        for query in (*QUERIES, *RANGES)
        for field in fields(RunQuery)
        if getattr(query, field.name) != field.default
    }
    assert used | {"limit"} == {field.name for field in fields(RunQuery)}


def plans(*, are_few: bool) -> Iterator[tuple[RunQuery, list[Query], set[str]]]:
    """Yield each query with its statements and the indexes that serve them."""
    for query, indexes in QUERIES.items():
        yield query, statements(query, are_few=are_few), indexes
    for query, (of_few, of_many) in RANGES.items():
        yield query, statements(query, are_few=are_few), of_few if are_few else of_many


def statements(query: RunQuery, *, are_few: bool) -> list[Query]:
    """Return what is asked for a query on a store without runs that match."""
    steps, asked, answers = _sql_find.find(query), list[Query](), None
    while not isinstance(step := advance(steps, answers), Ended):
        asked += step
        answers = [answer(text, are_few=are_few) for text, _ in step]
    return asked


def answer(text: str, *, are_few: bool) -> Rows:
    if text.startswith("SELECT count"):
        return [(0 if are_few else 10**6,)]
    return [("running",), ("unheard of",)] if text.startswith("WITH") else []


@pytest.mark.parametrize("are_few", [True, False])
async def test_sqlite_finds_by_indexes(tmp_path: Path, are_few: bool) -> None:
    async with SqliteStore(tmp_path / "runs.db"):
        pass
    with closing(sqlite3.connect(tmp_path / "runs.db")) as database:
        database.create_function("now", 0, time.time)
        for query, asked, indexes in plans(are_few=are_few):
            plan = [
                str(line)
                for text, parameters in asked
                for *_, line in database.execute(
                    f"EXPLAIN QUERY PLAN {in_sqlite(text)}", parameters
                )
            ]
            used = {index_of(line) for line in plan if line.startswith("SEARCH")}
            scanned = [line for line in plan if line.startswith("SCAN runs")]
            sorts = [line for line in plan if line.endswith("TREE FOR ORDER BY")]
            assert used - {None} == indexes, query
            assert scanned == [], query
            assert not sorts or indexes & {NUMBER, KEY}, query


def index_of(line: str) -> str | None:
    """Return the index of a search, or None for one that is only in the statement."""
    words = line.split()
    if "PRIMARY" in words:
        return NUMBER
    name = words[words.index("INDEX") + 1]
    return {"sqlite_autoindex_runs_1": KEY}.get(name, name)


@pytest.mark.parametrize("are_few", [True, False])
async def test_postgres_finds_by_indexes(postgres: str, are_few: bool) -> None:
    """By plans that are made while there are few runs, and by those for many."""
    schema = f"find{time.time_ns()}"
    async with PostgresStore(postgres, schema=schema):
        pass
    dialect = Dialect(schema)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(settings(statement_timeout=60))
        connection.prepare_threshold = None
        for fill in ("SELECT", _FILL.format(""), _FILL.format(" || n")):
            connection.execute(dialect.text(fill))
            for query, asked, indexes in plans(are_few=are_few):
                nodes = [
                    node for text, _ in asked for node in planned(connection, dialect.text(text))
                ]
                used = {node["Index Name"] for node in nodes if "Index Name" in node}
                unbounded = [
                    node
                    for node in nodes
                    if "Index Name" in node and "Index Cond" not in node
                    # The least status of all.
                    if node["Parent Relationship"] != "Outer"
                ]
                kinds = {node["Node Type"] for node in nodes}
                names = {"runs_pkey": NUMBER, "runs_key_key": KEY}
                assert {names.get(name, name) for name in used} == indexes, query
                assert unbounded == [], query
                assert "Seq Scan" not in kinds, query
                assert "Sort" not in kinds or indexes & {NUMBER, KEY}, query
                if query.workflow is not None and indexes <= {PARENT, TENANT}:
                    # No run of another workflow is read.
                    checked = [node["Index Cond"] for node in nodes if "Index Cond" in node]
                    assert all("workflow =" in text for text in checked), query


_FILL = """
    TRUNCATE @runs;
    INSERT INTO @runs (key, run_id, workflow, status, created_at, priority, parent, tenant, queue,
                       queue_key, details, updated_at, length, newest_message, unread,
                       owner, fence, expires_at)
    SELECT sha256(n::text::bytea), n::text, 'w'{0},
           CASE WHEN n % 9 > 0 THEN 'completed' ELSE 'failed' END, n, 0,
           'p'{0}, 't'{0}, 'q'{0}, '', '{{}}', n, 1, 0, 0, '', 0, 0
    FROM generate_series(1, 5000) AS n;
    ANALYZE @runs
"""
"""Runs that are all of one workflow, parent and tenant, or each of its own: an index of these selects all
of the runs, or one."""


def planned(connection: psycopg.Connection[Any], text: bytes) -> Iterator[dict[str, Any]]:
    """Yield the nodes of the plan of a statement for any parameters."""
    pieces = text.split(b"%b")
    numbered = b"".join(
        piece + (b"$%d" % number if number < len(pieces) else b"")
        for number, piece in enumerate(pieces, 1)
    )
    rows = connection.execute(b"EXPLAIN (GENERIC_PLAN, FORMAT JSON) " + numbered).fetchall()
    waiting = [rows[0][0][0]["Plan"]]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.get("Plans", [])


MANY: Sequence[str] = [
    "find_selects_runs_by_each_filter_and_by_all",
    "find_selects_runs_by_the_beginning_of_their_ids",
]


@pytest.mark.parametrize("make_store_named", ["sqlite full", "postgres"], indirect=True)
@pytest.mark.parametrize("name", MANY)
async def test_ranges_with_many_runs_are_found_in_order(
    make_store: MakeStore, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those with few, which the suite has checked."""
    monkeypatch.setattr(_sql_find, "_FEW", -1)
    checks = {str(check): check for check in store_conformance.CHECKS}
    await checks[name](make_store)
