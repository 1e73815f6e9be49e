"""Steps that change tables of users in the transaction that records their end."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sqlite3
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Never
from urllib.parse import urlsplit

import anyio
import psycopg
import pytest
from psycopg.rows import dict_row
from returns.result import Failure, Success

from effectflow import (
    App,
    Checkpoints,
    Client,
    Do,
    Effect,
    RetryPolicy,
    RunCancelled,
    RunStatus,
    Worker,
    Workflow,
    par_all,
    pure,
    step,
    transaction,
    workflow,
)
from effectflow.checkpoint import (
    Batch,
    BeforeStep,
    CancelRequested,
    CheckpointEvent,
    CheckpointPolicy,
    CheckpointStore,
    Completed,
    Encryption,
    EntryAppended,
    Failed,
    Lease,
    LeaseLost,
    NotSerializable,
    RunConflict,
    RunNotFound,
    StoreUnavailable,
    Transaction,
    TransactionUndone,
    find_run,
    read_entries,
    verify_run,
)
from effectflow.effects import from_async, from_fn
from effectflow.graphs import StateGraph
from effectflow.mapreduce import MapReduce
from effectflow.stores import MemoryStore, PostgresStore, SqliteStore
from effectflow.testing import CrashPoint, FaultyStore, SaveFails, TakenOver, after
from effectflow.testing.forwarding import ForwardingStore
from tests.apps import both_backends
from tests.stores.faults.forking import ending_of, forked
from tests.sweeps import EVERY, sample_or_all, visited

pytestmark = pytest.mark.anyio

Rows = AsyncGenerator[list[str]]


class Full(Exception):
    """No seat is left."""


@dataclass(frozen=True)
class Hall:
    checkpoints: Checkpoints
    tries: list[str] = field(default_factory=list[str])


TRIES: list[str] = []
"""The seats that the bodies have tried to reserve in this test."""

ON_BODY: list[Callable[[Any], Any]] = []
"""What the next bodies call once they have changed the table: one after the other."""


@transaction(errors=(Full, sqlite3.IntegrityError))
def reserve(connection: sqlite3.Connection, seat: str) -> str:
    TRIES.append(seat)
    connection.execute("INSERT INTO seats VALUES (?)", (seat,))
    if ON_BODY:
        ON_BODY.pop(0)(connection)
    return f"{seat} is yours"


@transaction(errors=(Full, psycopg.IntegrityError), name="reserve")
async def reserve_on_postgres(connection: psycopg.AsyncConnection[Any], seat: str) -> str:
    TRIES.append(seat)
    await connection.execute("INSERT INTO seats VALUES (%s)", (seat,))
    if ON_BODY:
        found = ON_BODY.pop(0)(connection)
        if found is not None:
            await found
    return f"{seat} is yours"


@workflow
def booking(seat: str) -> Do[Hall, Any, str]:
    return (yield from reserve(seat))


@workflow(name="booking")
def booking_on_postgres(seat: str) -> Do[Hall, Any, str]:
    return (yield from reserve_on_postgres(seat))


@dataclass(frozen=True)
class Database:
    """A store, what books a seat in its database, and the rows of the table there."""

    make: Callable[[], SqliteStore | PostgresStore]
    booking: Any
    reserve: Any
    rows: Callable[[], Awaitable[list[str]]]
    dsn: str = ""


@pytest.fixture(params=["sqlite", "postgres"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    TRIES.clear()
    ON_BODY.clear()
    if request.param == "sqlite":
        return await sqlite(tmp_path / "runs.db")
    return await postgres(request.getfixturevalue("postgres"))


async def sqlite(path: Path) -> Database:
    async with SqliteStore(path):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE seats (seat TEXT PRIMARY KEY)")

    async def rows() -> list[str]:
        with closing(sqlite3.connect(path)) as connection:
            return [seat for (seat,) in connection.execute("SELECT seat FROM seats ORDER BY seat")]

    return Database(lambda: SqliteStore(path), booking, reserve, rows)


async def postgres(dsn: str) -> Database:
    schema = f"hall_{time.time_ns()}"
    options = f"{dsn}{'&' if '?' in dsn else '?'}options=-csearch_path%3D{schema}"
    async with PostgresStore(dsn, schema=schema):
        with psycopg.connect(options) as connection:
            connection.execute("CREATE TABLE seats (seat TEXT PRIMARY KEY)")

    async def rows() -> list[str]:
        with psycopg.connect(options) as connection:
            return [seat for (seat,) in connection.execute("SELECT seat FROM seats ORDER BY seat")]

    make = lambda: PostgresStore(options, schema=schema)  # noqa: E731
    return Database(make, booking_on_postgres, reserve_on_postgres, rows, options)


@asynccontextmanager
async def opened(database: Database) -> AsyncGenerator[tuple[CheckpointStore, Hall]]:
    async with database.make() as store:
        yield store, Hall(Checkpoints(store))


def raising(error: Exception) -> Callable[[Any], None]:
    def raise_it(_: Any) -> None:
        raise error

    return raise_it


async def entries_of(store: CheckpointStore, run_id: str) -> list[str]:
    return [type(entry).__name__ for entry in await read_entries(store, run_id)]


# What is committed together.


@both_backends
async def test_the_rows_and_the_end_of_the_step_are_committed_together(database: Database) -> None:
    async with opened(database) as (store, hall):
        assert await database.booking.start("A1", run_id="r").run(hall) == Success("A1 is yours")
        assert await database.rows() == ["A1"]
        assert await entries_of(store, "r") == ["Started", "BeforeStep", "Completed", "Finished"]
        assert await database.booking.start("A1", run_id="r").run(hall) == Success("A1 is yours")
    assert TRIES == ["A1"]


async def test_a_failure_rolls_back_and_a_resume_tries_again(database: Database) -> None:
    ON_BODY.append(raising(Full()))
    async with opened(database) as (store, hall):
        assert isinstance(await database.booking.start("A1", run_id="r").run(hall), Failure)
        assert await database.rows() == []
        [failed] = [one for one in await read_entries(store, "r") if isinstance(one, Failed)]
        assert failed.error.type.endswith("Full")
        assert await database.booking.resume("r").run(hall) == Success("A1 is yours")
        assert await database.rows() == ["A1"]


async def test_a_defect_rolls_back(database: Database) -> None:
    ON_BODY.append(raising(ZeroDivisionError()))
    async with opened(database) as (_, hall):
        with pytest.raises(ZeroDivisionError):
            await database.booking.start("A1").run(hall)
    assert await database.rows() == []


async def test_an_output_that_cannot_be_saved_rolls_back(tmp_path: Path) -> None:
    @transaction
    def reserve(connection: sqlite3.Connection) -> object:
        connection.execute("INSERT INTO seats VALUES ('A1')")
        return object()

    @workflow
    def booking() -> Do[Hall, Any, object]:
        return (yield from reserve())

    database = await sqlite(tmp_path / "runs.db")
    async with opened(database) as (_, hall):
        result = await booking.start(None).run(hall)
        assert isinstance(result.failure(), NotSerializable)
    assert await database.rows() == []


async def test_what_the_commit_checks_is_a_failure_of_the_step(database: Database) -> None:
    """And not one of the store, which would repeat it forever."""
    async with opened(database) as (store, hall):
        async with connected(database) as connection:
            for statement in (
                "CREATE TABLE halls (hall INTEGER PRIMARY KEY)",
                "CREATE TABLE rows (hall INTEGER REFERENCES halls DEFERRABLE INITIALLY DEFERRED)",
            ):
                if (executing := connection.execute(statement)) and database.dsn:
                    await executing
        ON_BODY.append(lambda connection: connection.execute("INSERT INTO rows VALUES (3)"))
        result = await database.booking.start("A1", run_id="r").run(hall)
        assert isinstance(result, Failure)
        assert "foreign key constraint" in str(result.failure()).lower()
        assert await entries_of(store, "r") == ["Started", "BeforeStep", "Failed", "Finished"]
        assert await database.rows() == []
        assert await database.booking.resume("r").run(hall) == Success("A1 is yours")
        # As often as the driver needs to prepare statements that it repeats.
        ON_BODY.extend([lambda connection: connection.execute("INSERT INTO rows VALUES (3)")] * 6)
        taken = await greedy(database).start(["B1"] * 7).run(hall)
        assert taken == Success(["taken"] * 6 + ["B1 is yours"])
    assert TRIES == ["A1"] * 2 + ["B1"] * 7


def greedy(database: Database) -> Workflow[Hall, Any, list[str], list[str]]:
    """Return a workflow that reserves seats, and goes on if one is taken."""

    @workflow
    async def greedy(seats: list[str]) -> list[str]:
        reserved: list[str] = []
        for seat in seats:
            try:
                reserved.append(await database.reserve(seat))
            except (sqlite3.IntegrityError, psycopg.IntegrityError):
                reserved.append("taken")
        return reserved

    return greedy


async def test_an_error_of_the_driver_can_be_handled(database: Database) -> None:
    async with opened(database) as (_, hall):
        reserved = await greedy(database).start(["A1", "A1", "B1"]).run(hall)
        assert reserved == Success(["A1 is yours", "taken", "B1 is yours"])


async def test_retries_are_new_transactions(tmp_path: Path) -> None:
    tries: list[int] = []

    @transaction(errors=Full, retry=RetryPolicy.constant(0.001).with_max_retries(3))
    def reserve(connection: sqlite3.Connection) -> int:
        tries.append(1)
        connection.execute("INSERT INTO seats VALUES (?)", (f"A{len(tries)}",))
        if len(tries) < 3:
            raise Full
        return len(tries)

    @workflow
    def booking() -> Do[Hall, Full, int]:
        return (yield from reserve())

    database = await sqlite(tmp_path / "runs.db")
    async with opened(database) as (_, hall):
        assert await booking.start(None).run(hall) == Success(3)
    assert await database.rows() == ["A3"]


async def test_parallel_transactions_and_steps_of_a_run(database: Database) -> None:
    """Each is one event of the run, which a resume takes in its place."""

    @step
    def wait(seconds: float) -> Effect[Hall, Any, str]:
        async def sleep(_: Hall) -> str:
            await anyio.sleep(seconds)
            return "waited"

        return from_async(sleep)

    @workflow(name="all")
    def all_of_them(seats: list[str]) -> Do[Hall, Any, list[str]]:
        reserved = [database.reserve(seat) for seat in seats]
        return (yield from par_all([*reserved, wait(0.001), wait(0.02)]))

    seats = [f"A{number}" for number in range(8)]
    async with opened(database) as (_, hall):
        first = await all_of_them.start(seats, run_id="r").run(hall)
        assert first == Success([*(f"{seat} is yours" for seat in seats), "waited", "waited"])
        assert await all_of_them.start(seats, run_id="r").run(hall) == first
    assert await database.rows() == seats
    assert sorted(TRIES) == seats


class Conflicting(ForwardingStore):
    """A store whose first transactions are undone late. Checks that a run does one thing at a time."""

    is_busy = False
    conflicts = 3

    @contextmanager
    def alone(self) -> Generator[None]:
        assert not self.is_busy
        self.is_busy = True
        try:
            yield
        finally:
            self.is_busy = False

    async def append(self, lease: Lease, batch: Batch) -> None:
        with self.alone():
            await anyio.sleep(0.005)
            await super().append(lease, batch)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Transaction]:
        with self.alone():
            try:
                async with super().transaction() as transaction:
                    yield UndoneLate(self, transaction)
            finally:
                await anyio.sleep(0.02)


@dataclass
class UndoneLate(Transaction):
    store: Conflicting
    transaction: Transaction

    async def perform(self, body: Callable[[Any], Any]) -> Any:
        return await self.transaction.perform(body)

    async def append(self, lease: Lease, batch: Batch) -> None:
        # The entries have waited for so long that the run wants to save them.
        await anyio.sleep(0.03)
        if self.store.conflicts:
            self.store.conflicts -= 1
            raise TransactionUndone(RuntimeError("undone"))
        await self.transaction.append(lease, batch)


async def test_nothing_else_of_the_run_is_saved_during_a_transaction(tmp_path: Path) -> None:
    """An entry that waits to be saved may be taken back: that of a step whose transaction is undone."""
    policy = CheckpointPolicy(every_seconds=0.001)
    tries: list[int] = []

    @transaction
    def write(connection: sqlite3.Connection, number: int) -> list[str]:
        tries.append(number)
        connection.execute("INSERT INTO seats VALUES (?)", (str(number),))
        # So long that a thread closes the entry.
        return [f"{number:08d}"] * 50_000

    @workflow
    def writing() -> Do[Hall, Never, int]:
        for number in range(3):
            yield from write(number)
        return len(tries)

    database = await sqlite(tmp_path / "runs.db")
    async with database.make() as inner:
        hall = Hall(Checkpoints(Conflicting(inner), policy=policy))
        async with asyncio.timeout(20):
            assert await writing.start(None, run_id="r").run(hall) == Success(6)
        assert (await verify_run(inner, "r")).problem is None
    assert await database.rows() == ["0", "1", "2"]


async def test_builders_have_transactions_as_their_steps(tmp_path: Path) -> None:
    def letters(seats: str) -> list[str]:
        return list(seats)

    def joined(reserved: list[str]) -> Effect[Hall, Never, str]:
        return pure(" ".join(reserved))

    @transaction
    def once_more(connection: sqlite3.Connection, seat: str) -> str:
        connection.execute("INSERT INTO seats VALUES (?)", (f"{seat}+",))
        return f"{seat}+"

    steps = Workflow.of_steps("steps", [once_more])
    graph = StateGraph[Hall, Never, str]("graph").node("a", once_more).entry("a").exit("a")
    job = MapReduce("job", items=letters, map=once_more, reduce=joined, key=str, limit=2)
    database = await sqlite(tmp_path / "runs.db")
    async with opened(database) as (_, hall):
        assert await steps.start("a").run(hall) == Success("a+")
        assert await graph.build().start("b").run(hall) == Success("b+")
        assert (await job.start("cd").run(hall)).unwrap().value == "c+ d+"
    assert await database.rows() == ["a+", "b+", "c+", "d+"]


@pytest.mark.parametrize(
    "options", [{"encryption": Encryption("k", {"k": b"k" * 16})}, {"key": b"k" * 32}]
)
async def test_encrypted_and_signed_entries(database: Database, options: dict[str, Any]) -> None:
    async with database.make() as store:
        hall = Hall(Checkpoints(store, **options))
        assert await database.booking.start("A1", run_id="r").run(hall) == Success("A1 is yours")
        assert await database.booking.start("A1", run_id="r").run(hall) == Success("A1 is yours")
    assert await database.rows() == ["A1"]


# Faults.


@pytest.mark.parametrize("is_durable", [False, True])
async def test_a_crash_beside_the_commit(database: Database, is_durable: bool) -> None:
    async with database.make() as inner:
        store = FaultyStore(inner, [CrashPoint(after("reserve"), is_durable=is_durable)])
        hall = Hall(Checkpoints(store))
        with store.life():
            await database.booking.start("A1", run_id="r").run(hall)
        assert await database.rows() == (["A1"] if is_durable else [])
        assert await database.booking.start("A1", run_id="r").run(hall) == Success("A1 is yours")
        assert not store.unmet
    assert await database.rows() == ["A1"]
    assert (["A1"] if is_durable else ["A1", "A1"]) == TRIES


async def test_a_life_that_has_lost_its_lease_writes_nothing(database: Database) -> None:
    async with database.make() as inner:
        store = FaultyStore(inner, [TakenOver(after("reserve"))])
        hall = Hall(Checkpoints(store))
        result = await database.booking.start("A1", run_id="r").run(hall)
        assert isinstance(result.failure(), LeaseLost)
        assert await database.rows() == []
        assert await database.booking.resume("r").run(hall) == Success("A1 is yours")
    assert await database.rows() == ["A1"]


@pytest.mark.parametrize("is_durable", [False, True])
async def test_a_failed_save_ends_the_life(database: Database, is_durable: bool) -> None:
    """Also with `on_save_error="warn"`: what is in the database must be known to the run."""
    async with database.make() as inner:
        store = FaultyStore(inner, [SaveFails(after("reserve"), is_durable=is_durable)])
        hall = Hall(Checkpoints(store, on_save_error="warn"))
        assert isinstance(await database.booking.start("A1", run_id="r").run(hall), Failure)
        assert await database.rows() == (["A1"] if is_durable else [])
        assert await database.booking.resume("r").run(hall) == Success("A1 is yours")
    assert await database.rows() == ["A1"]


async def test_a_timeout_does_not_cut_a_transaction_off(database: Database) -> None:
    """It is over before the timeout takes effect, in the journal and in each resume."""

    @workflow(name="late")
    def late() -> Do[Hall, Any, str]:
        reserved = yield from database.reserve("A1").timeout(0.01)
        return reserved

    def wait(connection: Any) -> Any:
        if isinstance(connection, sqlite3.Connection):
            time.sleep(0.1)
            return None
        return anyio.sleep(0.1)

    ON_BODY.append(wait)
    async with opened(database) as (store, hall):
        for _ in range(2):
            assert await late.start(None, run_id="r").run(hall) == Success("A1 is yours")
        assert any(isinstance(one, Completed) for one in await read_entries(store, "r"))
    assert await database.rows() == ["A1"]


# What is refused.


async def test_the_body_cannot_end_the_transaction(database: Database) -> None:
    async with opened(database) as (_, hall):
        for end in ("commit", "rollback"):
            ON_BODY.append(lambda connection, end=end: getattr(connection, end)())
            with pytest.raises((sqlite3.DatabaseError, psycopg.ProgrammingError)) as raised:
                await database.booking.start("A1").run(hall)
            text = " ".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
            assert "committed with the entry" in text
    assert await database.rows() == []


@pytest.mark.parametrize("statement", ["DELETE FROM runs", "DROP TABLE entries", "COMMIT"])
async def test_a_body_cannot_change_the_tables_of_an_sqlite_store(
    statement: str, tmp_path: Path
) -> None:
    database = await sqlite(tmp_path / "runs.db")
    ON_BODY[:] = [lambda connection: connection.execute(statement)]
    async with opened(database) as (store, hall):
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            await booking.start("A1", run_id="r").run(hall)
        assert (await entries_of(store, "r"))[-1] == "Finished"
    assert await database.rows() == []


async def _deleted(connection: Any) -> None:
    # A connection to SQLite raises at once.
    deleted = connection.execute("DELETE FROM seats")
    await deleted


def give_other_rows(connection: Any) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.row_factory, connection.text_factory = sqlite3.Row, bytes
    else:
        connection.row_factory, connection.cursor_factory = dict_row, psycopg.AsyncRawCursor


async def test_a_body_chooses_the_rows_of_its_connection(database: Database) -> None:
    ON_BODY.append(give_other_rows)
    async with opened(database) as (_, hall):
        assert await database.booking.start("A1").run(hall) == Success("A1 is yours")
        assert await database.booking.start("B1").run(hall) == Success("B1 is yours")


async def test_the_connection_is_of_no_use_afterwards(database: Database) -> None:
    kept: list[Any] = []
    ON_BODY.append(kept.append)
    async with opened(database) as (_, hall):
        await database.booking.start("A1").run(hall)
        with pytest.raises((sqlite3.ProgrammingError, psycopg.ProgrammingError)):
            await _deleted(kept[0])
    assert await database.rows() == ["A1"]


async def test_another_store_is_refused_before_the_step_begins() -> None:
    async with MemoryStore() as store:
        result = await booking.start("A1", run_id="r").run(Hall(Checkpoints(store)))
        assert isinstance(result.failure(), StoreUnavailable)
        assert "Use SqliteStore or PostgresStore" in str(result.failure())
        assert not [one for one in await read_entries(store, "r") if isinstance(one, BeforeStep)]


async def test_the_other_kind_of_function_is_refused(database: Database) -> None:
    other = booking if database.booking is booking_on_postgres else booking_on_postgres
    async with opened(database) as (store, hall):
        result = await other.start("A1", run_id="r").run(hall)
        assert isinstance(result.failure(), StoreUnavailable)
        assert "function" in str(result.failure())
        assert not [one for one in await read_entries(store, "r") if isinstance(one, BeforeStep)]


async def test_outside_of_a_run_there_is_no_connection() -> None:
    with pytest.raises(TypeError, match="needs the connection of the store"):
        await reserve("A1").run(None)


def test_what_cannot_be_a_transaction() -> None:
    make: Any = transaction
    with pytest.raises(TypeError, match="returns an effect"):
        make(step(lambda: from_fn(lambda _: 1)))
    with pytest.raises(TypeError, match="has none for it"):
        make(lambda: 1)
    with pytest.raises(TypeError, match="generator"):

        @make
        def reserve(connection: object) -> Any:
            yield connection


# PostgreSQL undoes a transaction because of another one.


@pytest.fixture
async def server(postgres: str) -> Database:
    TRIES.clear()
    ON_BODY.clear()
    return await _postgres(postgres)


_postgres = postgres


async def test_a_body_that_ends_the_transaction_and_begins_another_is_noticed(
    server: Database,
) -> None:
    async def roll_back(connection: Any) -> None:
        await connection.execute("ROLLBACK")
        await connection.execute("BEGIN")

    ON_BODY.append(roll_back)
    async with opened(server) as (_, hall):
        with pytest.raises(RuntimeError, match="ended it by a statement"):
            await server.booking.start("A1", run_id="r").run(hall)
        assert await server.booking.resume("r").run(hall) == Success("A1 is yours")


async def test_an_unfinished_statement_is_noticed(server: Database) -> None:
    streams: list[Any] = []

    async def leave(connection: Any) -> None:
        streams.append(connection.cursor().stream("SELECT generate_series(1, 1000)"))
        await anext(streams[-1])

    ON_BODY.append(leave)
    async with opened(server) as (_, hall):
        with pytest.raises(RuntimeError, match="left a statement unfinished"):
            await server.booking.start("A1", run_id="r").run(hall)
        assert await server.booking.resume("r").run(hall) == Success("A1 is yours")


async def test_the_settings_of_a_body_end_with_it(server: Database) -> None:
    async def set_them(connection: Any) -> None:
        await connection.execute("SET default_transaction_read_only = on; SET search_path = none")

    ON_BODY.append(set_them)
    async with opened(server) as (_, hall):
        assert await server.booking.start("A1").run(hall) == Success("A1 is yours")
        assert await server.booking.start("B1").run(hall) == Success("B1 is yours")


async def test_a_serialization_failure_in_the_body_repeats_it(server: Database) -> None:
    def conflict(connection: Any) -> Any:
        raising = "DO $$ BEGIN RAISE EXCEPTION 'other' USING ERRCODE = '40001'; END $$"
        return connection.execute(raising)

    ON_BODY.extend([conflict, conflict])
    async with opened(server) as (_, hall):
        assert await server.booking.start("A1").run(hall) == Success("A1 is yours")
    assert (TRIES, await server.rows()) == (["A1"] * 3, ["A1"])


async def test_a_serialization_failure_of_the_commit_repeats_the_body(server: Database) -> None:
    """Two transactions have read what the other one changes, and the server notices at the commit."""

    async def conflict(connection: Any) -> None:
        await connection.execute("CREATE TABLE IF NOT EXISTS later (x int)")
        await connection.execute(
            "CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'other' USING ERRCODE = '40001'; END $$"
        )
        await connection.execute(
            "CREATE CONSTRAINT TRIGGER fail AFTER INSERT ON later DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION fail()"
        )
        await connection.execute("INSERT INTO later VALUES (1)")

    ON_BODY.extend([conflict, conflict])
    async with opened(server) as (store, hall):
        assert await server.booking.start("A1", run_id="r").run(hall) == Success("A1 is yours")
        assert await server.booking.start("A1", run_id="r").run(hall) == Success("A1 is yours")
        assert await entries_of(store, "r") == ["Started", "BeforeStep", "Completed", "Finished"]
    assert (TRIES, await server.rows()) == (["A1"] * 3, ["A1"])


async def test_a_lost_connection_repeats_the_body(server: Database) -> None:
    async def lose(connection: Any) -> None:
        own = connection.info.backend_pid
        dsn = f"{connection.info.dsn}"
        async with await psycopg.AsyncConnection[Any].connect(dsn, autocommit=True) as other:
            await other.execute("SELECT pg_terminate_backend(%s)", (own,))

    ON_BODY.extend([lose, lose])
    async with opened(server) as (_, hall):
        assert await server.booking.start("A1").run(hall) == Success("A1 is yours")
    assert (TRIES, await server.rows()) == (["A1"] * 3, ["A1"])


# Processes that are killed.


@step
def pay(seat: str) -> Effect[Hall, Any, str]:
    return from_fn(lambda _: f"paid {seat}")


@workflow
def evening(seats: list[str]) -> Do[Hall, Any, list[str]]:
    first = yield from reserve(seats[0])
    paid = yield from pay(seats[0])
    rest = yield from par_all([*(reserve(seat) for seat in seats[1:]), pay("rest")])
    last = yield from reserve("last")
    return [first, paid, *rest, last]


SEATS = ["A1", "A2", "A3"]
WHOLE = [
    "A1 is yours",
    "paid A1",
    "A2 is yours",
    "A3 is yours",
    "paid rest",
    "last is yours",
]


def spend_evening(path: Path) -> None:
    async def main() -> None:
        async with SqliteStore(path, durability="process") as store:
            found = await evening.start(SEATS, run_id="r").run(Hall(Checkpoints(store)))
            assert found == Success(WHOLE)

    anyio.run(main)


def spend_evening_and_die(path: Path, at: int) -> None:
    """Die before the `at`-th statement of any connection to the database."""
    count = itertools.count(1)
    connect = sqlite3.connect

    def note(_: str) -> None:
        if next(count) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def connect_and_note(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.set_trace_callback(note)
        return connection

    sqlite3.connect = connect_and_note
    spend_evening(path)


@EVERY
def test_a_kill_at_every_statement_finds_each_row_once(every: int, tmp_path: Path) -> None:
    ON_BODY.clear()
    anyio.run(sqlite, tmp_path / "whole.db")
    assert ending_of(forked(lambda: spend_evening(tmp_path / "whole.db"))) == 0
    killed = 0
    for at in visited(range(1, 400), every):
        path = tmp_path / f"{at}.db"
        database = anyio.run(sqlite, path)
        ending = ending_of(forked(lambda at=at, path=path: spend_evening_and_die(path, at)))
        if ending == 0:
            break
        assert ending == -signal.SIGKILL
        killed += 1
        assert ending_of(forked(lambda path=path: spend_evening(path))) == 0
        assert anyio.run(database.rows) == [*SEATS, "last"]
        path.unlink()
    assert killed > 60 // every


async def seats_on_postgres(database: Database) -> None:
    async with opened(database) as (_, hall):
        found = await evening_on_postgres.start(SEATS, run_id="r").run(hall)
        assert found == Success(WHOLE)


@workflow(name="evening")
def evening_on_postgres(seats: list[str]) -> Do[Hall, Any, list[str]]:
    first = yield from reserve_on_postgres(seats[0])
    paid = yield from pay(seats[0])
    rest = yield from par_all([*map(reserve_on_postgres, seats[1:]), pay("rest")])
    last = yield from reserve_on_postgres("last")
    return [first, paid, *rest, last]


def die_on_postgres(database: Database, at: int) -> None:
    """Die before the process asks the server for the `at`-th time."""
    count = itertools.count(1)
    wait = psycopg.AsyncConnection[Any].wait

    async def wait_or_die(*arguments: Any, **options: Any) -> Any:
        if next(count) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return await wait(*arguments, **options)

    psycopg.AsyncConnection.wait = wait_or_die
    anyio.run(seats_on_postgres, database)


@sample_or_all("every", 25, 2)
def test_a_kill_between_two_requests_finds_each_row_once(every: int, postgres: str) -> None:
    ON_BODY.clear()
    killed = 0
    for at in range(20, 400, every):
        database = anyio.run(_postgres, postgres)
        ending = ending_of(forked(lambda at=at, database=database: die_on_postgres(database, at)))
        if ending == 0:
            break
        assert ending == -signal.SIGKILL
        killed += 1
        ended = forked(lambda database=database: anyio.run(seats_on_postgres, database))
        assert ending_of(ended) == 0
        assert anyio.run(database.rows) == [*SEATS, "last"]
    assert killed > 1


# Cancellations.


async def test_a_cancelled_task_ends_after_the_commit(database: Database) -> None:
    began = threading.Event()

    def wait(connection: Any) -> Any:
        began.set()
        if isinstance(connection, sqlite3.Connection):
            time.sleep(0.05)
            return None
        return anyio.sleep(0.05)

    ON_BODY.append(wait)
    async with opened(database) as (_, hall):
        start = asyncio.ensure_future(database.booking.start("A1", run_id="r").run(hall))
        while not began.is_set():
            await asyncio.sleep(0.001)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert await database.rows() == ["A1"]
        assert await database.booking.start("A1", run_id="r").run(hall) == Success("A1 is yours")
    assert TRIES == ["A1"]


async def test_a_run_is_cancelled_during_a_transaction(server: Database) -> None:
    """The request is recorded before the end of the step, which is committed all the same."""
    requested = asyncio.Event()

    class Noticing:
        def notify(self, event: CheckpointEvent) -> None:
            if isinstance(event, EntryAppended) and isinstance(event.entry, CancelRequested):
                requested.set()

    async with server.make() as store:
        hall = Hall(Checkpoints(store, observers=[Noticing()]))
        handle = await Client(hall.checkpoints).submit(server.booking, "A1", run_id="r")

        async def cancel(_: Any) -> None:
            await handle.cancel()
            await requested.wait()

        ON_BODY.append(cancel)
        app = App([server.booking], environment=lambda _: hall, checkpoints=hall.checkpoints)
        async with asyncio.timeout(20), Worker(app):
            assert isinstance((await handle.result()).failure(), RunCancelled)
        names = await entries_of(store, "r")
    assert names.index("CancelRequested") < names.index("Completed")
    assert await server.rows() == ["A1"]


# Runs that are submitted in a transaction of the caller.


@asynccontextmanager
async def connected(database: Database) -> AsyncGenerator[Any]:
    """A connection of the caller, with a transaction that is committed at the end, or rolled back."""
    store = database.make()
    if isinstance(store, SqliteStore):
        with closing(sqlite3.connect(store.path)) as connection, connection:
            yield connection
    else:
        async with await psycopg.AsyncConnection[Any].connect(database.dsn) as connection:
            yield connection


async def test_a_run_is_submitted_with_the_commit(database: Database) -> None:
    async with database.make() as store, store.changes() as changes:
        client = Client(Checkpoints(store))
        async with connected(database) as connection:
            handle = await client.submit(database.booking, "A1", run_id="r", connection=connection)
            with pytest.raises(RunNotFound):
                await handle.status()
            with pytest.raises(RunConflict, match="in this transaction"):
                await client.submit(database.booking, "A1", run_id="r", connection=connection)
        changed = await changes.wait(10)
        assert changed is None or "r" in changed
        assert await handle.status() is RunStatus.PENDING
        async with connected(database) as connection:
            await client.submit(database.booking, "A1", run_id="r", connection=connection)
            with pytest.raises(RunConflict):
                await client.submit(database.booking, "B1", run_id="r", connection=connection)
        assert await database.booking.resume("r").run(Hall(Checkpoints(store))) == Success(
            "A1 is yours"
        )


async def test_a_connection_submits_whatever_rows_it_returns(database: Database) -> None:
    async with database.make() as store:
        client = Client(Checkpoints(store))
        async with connected(database) as connection:
            give_other_rows(connection)
            for _ in range(2):
                with suppress(RunConflict):
                    await client.submit(database.booking, "A1", run_id="r", connection=connection)
        assert len(await client.find()) == 1


async def test_a_run_of_a_transaction_that_is_rolled_back_never_exists(database: Database) -> None:
    async with database.make() as store:
        client = Client(Checkpoints(store))
        with suppress(ZeroDivisionError):
            async with connected(database) as connection:
                await client.submit(database.booking, "A1", connection=connection)
                raise ZeroDivisionError
        assert await client.find() == []


async def test_a_transaction_submits_a_run_with_its_step(server: Database) -> None:
    async with opened(server) as (store, hall):
        client = Client(hall.checkpoints)

        async def submit(connection: Any) -> None:
            await client.submit(server.booking, "B1", run_id="next", connection=connection)
            if len(TRIES) == 1:
                raise Full

        ON_BODY.extend([submit, submit])
        await server.booking.start("A1", run_id="r").run(hall)
        assert await find_run(store, "next") is None
        await server.booking.resume("r").run(hall)
        assert await find_run(store, "next") is not None


async def test_connections_that_cannot_submit(database: Database, tmp_path: Path) -> None:
    wrong: list[Any] = [(3, TypeError)]
    async with database.make() as store:
        client = Client(Checkpoints(store))
        if isinstance(store, SqliteStore):
            wrong += [
                (sqlite3.connect(store.path, isolation_level=None), ValueError),
                (sqlite3.connect(tmp_path / "other.db"), ValueError),
                (sqlite3.connect(":memory:"), ValueError),
            ]
        else:
            connect = psycopg.AsyncConnection[Any].connect
            other = urlsplit(database.dsn)._replace(path="/postgres").geturl()
            wrong += [
                (await connect(database.dsn, autocommit=True), ValueError),
                (await connect(other), ValueError),
            ]
        for connection, error in wrong:
            with pytest.raises(error):
                await client.submit(database.booking, "A1", connection=connection)
            if connection != 3:
                closed = connection.close()
                if closed is not None:
                    await closed
        assert await client.find() == []
    with pytest.raises(StoreUnavailable, match="submit"):
        await Client(Checkpoints(MemoryStore())).submit(database.booking, "A1", connection=3)


async def test_a_database_that_another_program_has_locked_ends_the_life(tmp_path: Path) -> None:
    """The code of the step was not called, and a resume calls it once."""
    database = await sqlite(tmp_path / "runs.db")
    TRIES.clear()
    locking = [sqlite3.connect(tmp_path / "runs.db", isolation_level=None)]

    @workflow
    def late() -> Do[Hall, Any, str]:
        if locking:
            locking[0].execute("BEGIN IMMEDIATE")
        return (yield from reserve("A1"))

    async with SqliteStore(tmp_path / "runs.db", lock_timeout=0.05) as store:
        hall = Hall(Checkpoints(store))
        result = await late.start(None, run_id="r").run(hall)
        assert "has locked it" in str(result.failure())
        assert TRIES == []
        locking.pop().close()
        assert await late.resume("r").run(hall) == Success("A1 is yours")
    assert (TRIES, await database.rows()) == (["A1"], ["A1"])
