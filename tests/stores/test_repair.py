"""Repair damaged runs: what is kept, what is removed, and what runs again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Never

import anyio
import orjson
import pytest
from returns.result import Failure, Success

from effectflow import (
    Checkpoints,
    Client,
    Do,
    Effect,
    Signal,
    Worker,
    do,
    effect,
    pure,
    race,
    spawn,
    step,
    workflow,
)
from effectflow.checkpoint import (
    CheckpointStore,
    CorruptCheckpoint,
    Encryption,
    Lease,
    OutcomeUnknown,
    Record,
    RunBusy,
    RunCancelled,
    RunNotFound,
    RunQuery,
    RunStatus,
    RunSummary,
    Seal,
    Taken,
    find_run,
    read_entries,
    repair_run,
    verify_run,
    write_removed,
)
from effectflow.checkpoint.entries import CancelRequested, Signalled
from effectflow.effects import never, traverse
from effectflow.mapreduce import MapReduce
from effectflow.service import App as Service
from effectflow.stores import FileStore, MemoryStore
from effectflow.testing.forwarding import ForwardingStore
from effectflow.testing.store_conformance import MakeStore
from tests.apps import App, Broken, app_on, cut_off, note
from tests.stores.damage import change_entry, change_status, changed, remove_entry
from tests.stores.runs import bodies_of, claimed, info_of
from tests.sweeps import in_turn

pytestmark = pytest.mark.anyio

WORDS = ["once", "upon", "a", "time"]

say = step(note)


@workflow
def tale(words: list[str]) -> Do[App, Any, list[int]]:
    return (yield from traverse(words, say))


async def told(store: CheckpointStore, words: list[str] = WORDS) -> list[Record]:
    """Tell a tale: Started, two entries for each word, and Finished. Return its entries."""
    await tale.start(words, run_id="r").run_or_raise(app_on(store))
    return await store.read("r")


def step_of(number: int) -> str:
    return "note" if number == 1 else f"note#{number}"


@pytest.mark.parametrize("number", [10, 9, 8, 5, 2])
async def test_a_damaged_run_is_cut_to_its_last_intact_entry(
    make_store: MakeStore, number: int
) -> None:
    async with make_store() as store:
        written = await told(store)
        await change_entry(store, number)
        problem = (await verify_run(store, "r")).problem
        assert "`repair_run(store, 'r')`" in str(problem)

        repair = await repair_run(store, "r")

        assert type(repair.problem) is type(problem)
        assert (repair.kept, repair.lost) == (number - 1, 11 - number)
        assert await store.read("r") == written[: number - 1]
        info = await info_of(store, "r")
        assert (info.length, info.lease) == (number - 1, None)
        assert info.updated_at == written[number - 2].written_at
        assert (await verify_run(store, "r")).problem is None

        # The steps that were completed before the damage, and Started, are left.
        again = WORDS[(number - 2) // 2 :]
        assert list(repair.runs_again) == [step_of(1 + WORDS.index(word)) for word in again]
        app = app_on(store)
        assert await tale.resume("r").run(app) == Success([1] * 4)
        assert app.world.done == again
        assert (await verify_run(store, "r")).problem is None


async def test_what_is_removed_is_kept_byte_by_byte(make_store: MakeStore) -> None:
    async with make_store() as store:
        written = await told(store)
        await change_entry(store, 9)
        found = await repair_run(store, "r", dry_run=True)

        lines = [orjson.loads(line) for line in write_removed(found)]
        assert (lines[0]["run_id"], lines[0]["kept"]) == ("r", 8)
        if isinstance(store, FileStore):
            path = store.directory / "sessions" / "r" / "checkpoint.json"
            assert found.unreadable == {"checkpoint.json": path.read_bytes()}
            assert lines[-1] == {"place": "checkpoint.json", "text": path.read_text()}
        expected = [changed(written[8].body), written[9].body]
        assert [record.body for record in found.removed] == expected
        assert [line["text"].encode() for line in lines[1:3]] == expected
        assert [line["sequence"] for line in lines[1:3]] == [9, 10]


async def test_nothing_is_changed_by_a_dry_run_or_if_nothing_can_be_kept_aside(
    make_store: MakeStore,
) -> None:
    def full_disk(_: object) -> None:
        raise OSError("no space left")

    async with make_store() as store:
        await told(store)
        await change_entry(store, 9)
        before = await repair_run(store, "r", dry_run=True)
        with pytest.raises(OSError, match="no space left"):
            await repair_run(store, "r", aside=full_disk)
        again = await repair_run(store, "r")
        assert (again.removed, again.unreadable) == (before.removed, before.unreadable)


async def test_a_good_run_stays_as_it_is(make_store: MakeStore) -> None:
    async with make_store() as store:
        written = await told(store)
        repair = await repair_run(store, "r", aside=lambda _: pytest.fail("nothing is removed"))
        assert (repair.problem, repair.kept, repair.lost) == (None, 10, 0)
        assert await store.read("r") == written
        with pytest.raises(RunNotFound):
            await repair_run(store, "R")


@effect(errors=ValueError)
def measure(_: App, word: str) -> int:
    if word == "upon":
        raise ValueError(word)
    return len(word)


def words_of(words: list[str]) -> list[str]:
    return words


def total(lengths: list[int]) -> Effect[App, Never, int]:
    return pure(sum(lengths))


lengths = MapReduce(
    "lengths",
    items=words_of,
    map=measure,
    reduce=total,
    key=str,
    limit=1,
    on_item_failure="dead_letter",
)


@pytest.mark.parametrize("left", [0, 1])
async def test_a_repaired_run_counts_the_dead_letters_that_are_left(
    make_store: MakeStore, left: int
) -> None:
    async with make_store() as store:
        await lengths.start(WORDS, run_id="r").run_or_raise(app_on(store))
        info = await info_of(store, "r")
        assert info.summary.details.dead_letters == 1
        # The last entry, or one before the item failed.
        await change_entry(store, info.length if left else 3)

        await repair_run(store, "r")

        repaired = await info_of(store, "r")
        assert repaired.summary.details.dead_letters == left
        await lengths.resume("r").run_or_raise(app_on(store))
        resumed = await info_of(store, "r")
        assert resumed.summary.details.dead_letters == 1


async def test_a_run_that_is_driven_is_not_repaired(make_store: MakeStore) -> None:
    async with make_store() as store:
        await told(store)
        await change_entry(store, 9)
        lease = await claimed(store)
        with pytest.raises(RunBusy):
            await repair_run(store, "r")
        await store.release(lease)
        assert (await repair_run(store, "r")).kept == 8


async def test_a_run_without_an_intact_entry_is_not_repaired(make_store: MakeStore) -> None:
    async with make_store() as store:
        await told(store)
        await change_entry(store, 1)
        with pytest.raises(CorruptCheckpoint, match="None of its entries are intact"):
            await repair_run(store, "r")


@pytest.mark.parametrize("make_store_named", ["sqlite full", "postgres", "redis"], indirect=True)
async def test_missing_entries_are_damage(make_store: MakeStore) -> None:
    async with make_store() as store:
        await told(store)
        await remove_entry(store, 4)
        repair = await repair_run(store, "r")
        assert (repair.kept, repair.lost) == (3, 7)
        assert [record.sequence for record in repair.removed] == [5, 6, 7, 8, 9, 10]
        assert repair.has_unknown_steps
        assert repair.runs_again == ("note#2", "note#3", "note#4")
        assert await tale.resume("r").run(app_on(store)) == Success([1] * 4)

        # The store still knows that the run was complete, or how many entries it had.
        await remove_entry(store, len(await store.read("r")))
        repair = await repair_run(store, "r")
        assert repair.problem is not None
        assert repair.runs_again == ()
        assert (await verify_run(store, "r")).problem is None
        assert await tale.resume("r").run(app_on(store)) == Success([1] * 4)


@pytest.mark.parametrize("make_store_named", ["sqlite full", "postgres", "redis"], indirect=True)
async def test_a_run_of_which_only_the_status_is_damaged_keeps_all_entries(
    make_store: MakeStore,
) -> None:
    async with make_store() as store:
        written = await told(store)
        await change_status(store)
        with pytest.raises(CorruptCheckpoint):
            await find_run(store, "r")

        repair = await repair_run(store, "r")
        assert (repair.kept, repair.lost, repair.runs_again) == (10, 0, ())
        assert await store.read("r") == written
        info = await info_of(store, "r")
        assert info.summary.status is RunStatus.COMPLETED


async def test_an_entry_of_redis_whose_time_is_damaged_is_kept_aside(redis: str) -> None:
    from effectflow.stores import RedisStore
    from tests.stores.damage import in_redis

    async with RedisStore(redis, prefix="damaged times") as store:
        await told(store)
        client, key = in_redis(store, "r")
        client.hset(key, "9", b"x" + client.hget(key, "9"))
        with pytest.raises(CorruptCheckpoint, match="its time is damaged"):
            await store.read("r")
        repair = await repair_run(store, "r")
        assert list(repair.unreadable) == ["entry 9"]
        assert repair.kept == 8
        assert (await verify_run(store, "r")).problem is None


# Which steps run again.


@step(at_most_once=True)
@effect
def charge(app: App, amount: int) -> int:
    return app.world.note(f"charge {amount}")


@workflow
def order(amount: int) -> Do[App, Any, int]:
    yield from say("check")
    charged = yield from charge(amount)
    yield from say("ship")
    return charged


async def test_an_at_most_once_step_whose_end_is_lost_has_an_unknown_outcome() -> None:
    async with MemoryStore() as store:
        await order.start(5, run_id="r").run_or_raise(app_on(store))
        await change_entry(store, 5)

        repair = await repair_run(store, "r")
        assert repair.runs_again == ("charge", "note#2")
        assert (repair.outcome_unknown, repair.executed_twice) == (("charge",), ())
        assert repair.has_unknown_steps

        app = app_on(store)
        ended = await order.resume("r").run(app)
        assert isinstance(ended, Failure)
        assert isinstance(ended.failure(), OutcomeUnknown)
        assert app.world.done == []
        assert await order.resume("r", force=True).run(app) == Success(1)
        assert app.world.done == ["charge 5", "ship"]


async def test_an_at_most_once_step_whose_beginning_is_lost_is_reported() -> None:
    async with MemoryStore() as store:
        await order.start(5, run_id="r").run_or_raise(app_on(store))
        await change_entry(store, 3)

        repair = await repair_run(store, "r")
        assert repair.runs_again == ("note", "charge", "note#2")
        assert (repair.outcome_unknown, repair.executed_twice) == ((), ("charge",))
        app = app_on(store)
        assert await order.resume("r").run(app) == Success(1)
        assert app.world.done == ["check", "charge 5", "ship"]


async def test_a_worker_continues_a_run_that_was_repaired(make_service: MakeStore) -> None:
    async with make_service() as store:
        app = app_on(store)
        service = Service([tale], environment=lambda _: app, checkpoints=app.checkpoints)
        await tale.start(WORDS, run_id="r").run_or_raise(app_on(store))
        await change_entry(store, 7)
        assert (await repair_run(store, "r")).is_due
        async with Worker(service) as worker:
            result = await worker.client.handle(tale, "r").result(timeout=30)
        assert result == Success([1] * 4)
        assert app.world.done == ["a", "time"]


async def test_a_run_that_still_has_failed_after_the_repair_waits_for_a_resume(
    tmp_path: Path,
) -> None:
    async with FileStore(tmp_path) as store:
        await tale.start(WORDS, run_id="r").run(app_on(store, failing=["a"]))
        path = tmp_path / "sessions" / "r" / "checkpoint.json"
        path.write_bytes(path.read_bytes().replace(b'"version": "1"', b'"version": "7"', 1))
        repair = await repair_run(store, "r")
        assert (repair.lost, repair.runs_again, repair.is_due) == (0, ("note#3",), False)
        info = await info_of(store, "r")
        assert (info.summary.status, info.summary.due_at) == (RunStatus.FAILED, None)


@workflow
def spawning(words: list[str]) -> Do[App, Any, list[int]]:
    return (yield from (yield from spawn(tale, words)).result())


async def test_a_repaired_run_keeps_its_parent_and_its_priority() -> None:
    async with MemoryStore() as store:
        app = app_on(store)
        service = Service([spawning, tale], environment=lambda _: app, checkpoints=app.checkpoints)
        async with Worker(service) as worker:
            handle = await worker.client.submit(spawning, WORDS, run_id="outer", priority=3)
            assert await handle.result(timeout=30) == Success([1] * 4)
        [inner] = await store.find(RunQuery(workflow="tale"))
        await change_entry(store, 9, inner.run_id)

        repair = await repair_run(store, inner.run_id)
        after = await info_of(store, inner.run_id)
        assert (after.summary.parent, after.summary.priority) == ("outer", inner.summary.priority)
        assert (repair.is_due, after.summary.due_at is not None) == (True, True)


approval: Signal[str] = Signal("approval", str)


@workflow
def approved(_: None) -> Do[App, Any, str]:
    yield from say("ask")
    answer = yield from approval.wait()
    yield from say(answer)
    return answer


async def test_a_message_whose_receipt_is_lost_must_be_sent_again() -> None:
    async def answered(app: App, answer: str, *, key: str) -> object:
        handle = Client(app.checkpoints).handle(approved, "r")
        await handle.send(approval, answer, idempotency_key=key)
        return await approved.resume("r").run_or_raise(app)

    async with MemoryStore() as store:
        app = app_on(store)
        await cut_off(approved.start(None, run_id="r"), app)
        assert await answered(app, "yes", key="1") == "yes"
        lost = [type(entry) for entry in await read_entries(store, "r")].index(Signalled) + 1
        await change_entry(store, lost)

        repair = await repair_run(store, "r")
        assert (repair.runs_again, repair.waits_again) == (("note#2",), ("signal:approval",))
        assert await answered(app, "yes, again", key="2") == "yes, again"
        assert app.world.done == ["ask", "yes", "yes, again"]


async def test_a_run_whose_request_to_cancel_is_lost_is_cancelled_again(
    make_service: MakeStore,
) -> None:
    async with make_service() as store:
        app = app_on(store)
        service = Service([approved], environment=lambda _: app, checkpoints=app.checkpoints)
        async with Worker(service) as worker:
            handle = await worker.client.submit(approved, None, run_id="r")
            await handle.cancel()
            assert isinstance((await handle.result(timeout=30)).failure(), RunCancelled)
        kinds = [type(entry) for entry in await read_entries(store, "r")]
        await change_entry(store, kinds.index(CancelRequested))

        repair = await repair_run(store, "r")
        assert (repair.cancels_again, repair.is_due) == (True, True)
        async with Worker(service) as worker:
            handle = worker.client.handle(approved, "r")
            assert isinstance((await handle.result(timeout=30)).failure(), RunCancelled)


def approved_word(word: str) -> Do[App, Broken | str, str]:
    yield from note(word)
    return (yield from approval.wait())


def joined(words: list[str]) -> Effect[App, Never, str]:
    return pure(" ".join(words))


approvals = MapReduce(
    "approvals",
    items=words_of,
    map=do(approved_word),
    reduce=joined,
    key=str,
    limit=1,
    on_item_failure="dead_letter",
)


async def test_a_run_that_had_ended_before_the_damage_waits_for_nothing() -> None:
    async with MemoryStore() as store:
        await approvals.start(["a"], run_id="r").run_or_raise(app_on(store, failing=["a"]))
        info = await info_of(store, "r")
        app = app_on(store)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(approvals.retry_dead_letters("r").run_or_raise, app)
            handle = Client(app.checkpoints).handle(approvals, "r")
            with anyio.fail_after(10):
                while not app.world.done:
                    await anyio.sleep(0.01)
            await handle.send(approval, "yes")
        assert Signalled in map(type, await read_entries(store, "r"))
        await change_entry(store, info.length + 1)

        repair = await repair_run(store, "r")
        assert (repair.kept, repair.waits_again, repair.is_due) == (info.length, (), False)


@step
def wait(name: str) -> Effect[object, str, str]:
    return never() if name == "slow" else pure(name)


@workflow
def racing(_: None) -> Do[App, Any, str]:
    yield from race([wait("fast"), wait("slow")])
    yield from wait("slow").timeout(0.01).result()
    return (yield from wait("last"))


async def test_a_step_that_a_decision_has_cancelled_does_not_run_again() -> None:
    async with MemoryStore() as store:
        await racing.start(None, run_id="r").run_or_raise(app_on(store))
        await change_entry(store, len(await store.read("r")) - 1)

        repair = await repair_run(store, "r")
        assert repair.runs_again == ("wait#2",)
        plan = await racing.plan("r").run_or_raise(app_on(store))
        assert plan.start == repair.runs_again


async def test_a_failed_step_runs_again_as_without_damage() -> None:
    async with MemoryStore() as store:
        await tale.start(WORDS, run_id="r").run(app_on(store, failing=["a"]))
        await change_entry(store, 8)
        repair = await repair_run(store, "r")
        assert (repair.kept, repair.runs_again) == (7, ("note#3",))
        app = app_on(store)
        assert await tale.resume("r").run(app) == Success([1] * 4)
        assert app.world.done == ["a", "time"]


# What is not damage.

KEY = bytes(range(32))
OLD, NEW = (
    Encryption("old", {"old": b"o" * 16}),
    Encryption("new", {"old": b"o" * 16, "new": b"n" * 16}),
)


@pytest.mark.parametrize("seal", [Seal(), Seal(key=KEY[::-1]), Seal(key=KEY, encryption=OLD)])
async def test_a_run_that_needs_other_keys_is_not_cut(seal: Seal) -> None:
    async with MemoryStore() as store:
        checkpoints = Checkpoints(store, key=KEY)
        await tale.start(WORDS, run_id="r").run_or_raise(App(checkpoints))
        before = await bodies_of(store)
        with pytest.raises(CorruptCheckpoint):
            await repair_run(store, "r", seal)
        assert await bodies_of(store) == before


@pytest.mark.parametrize("key", [None, KEY])
async def test_a_run_whose_later_entries_need_a_newer_key_is_not_cut(key: bytes | None) -> None:
    async with MemoryStore() as store:
        old, new = Seal(key=key, encryption=OLD), Seal(key=key, encryption=NEW)
        app = App(Checkpoints(store, key=key, encryption=OLD))
        app.world.failing.add("a")
        await tale.start(WORDS, run_id="r").run(app)
        again = App(Checkpoints(store, key=key, encryption=NEW))
        await tale.resume("r").run_or_raise(again)
        before = await bodies_of(store)

        with pytest.raises(CorruptCheckpoint, match="which is not among the given ones"):
            await repair_run(store, "r", old)
        assert await bodies_of(store) == before
        await change_entry(store, len(before))
        assert (await repair_run(store, "r", new)).kept == len(before) - 1
        assert (await tale.resume("r").run(again)).unwrap()


# Cut off in the middle.


class SlowTruncation(ForwardingStore):
    async def truncate(self, lease: Lease, *, after: int, summary: RunSummary) -> None:
        await anyio.sleep(60)


class SlowClaim(ForwardingStore):
    """A store whose first claim holds, and is answered late."""

    is_late = True

    async def claim(self, run_id: str, *, owner: str, seconds: float) -> Taken:
        taken = await super().claim(run_id, owner=owner, seconds=seconds)
        if self.is_late:
            self.is_late = False
            await anyio.sleep(60)
        return taken


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("slow", [SlowTruncation, SlowClaim])
def test_a_repair_that_is_cancelled_releases_the_run(
    backend: str, slow: type[ForwardingStore]
) -> None:
    async def main() -> None:
        store = MemoryStore()
        await told(store)
        await change_entry(store, 9)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(repair_run, slow(store), "r")
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        info = await info_of(store, "r")
        assert info.lease is None
        assert (await repair_run(store, "r")).kept == 8

    anyio.run(main, backend=backend)


# Damaged files.

BREAK: dict[str, Callable[[Path], object]] = {
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-300]),
    "a byte": lambda path: path.write_bytes(
        path.read_bytes()[:-200] + b"\x00" + path.read_bytes()[-199:]
    ),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
}


MANY_WORDS = [f"word {number}" for number in range(110)]
"""Enough that the entries fill a file and begin another one."""


@pytest.fixture(scope="module", params=[0, 2])
def history(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module")
def long_tale(tmp_path_factory: pytest.TempPathFactory, history: int) -> Path:
    """The folder of a store with a run of many words, to be copied."""
    folder = tmp_path_factory.mktemp("long")

    async def tell() -> None:
        async with FileStore(folder, history=history) as store:
            await tale.start(MANY_WORDS, run_id="r").run_or_raise(app_on(store))

    anyio.run(tell)
    return folder


@in_turn(how=BREAK, which=["newest", "second", "first"])
async def test_any_file_of_a_run_may_be_damaged(
    tmp_path: Path, long_tale: Path, how: str, which: str, history: int
) -> None:
    shutil.copytree(long_tale, tmp_path, symlinks=True, dirs_exist_ok=True)
    async with FileStore(tmp_path, history=history) as store:
        written = await store.read("r")
        run = tmp_path / "sessions" / "r"
        first, second = sorted((run / "entries").iterdir())
        newest = run / "checkpoint.json"
        path = {"first": first, "second": second, "newest": newest}[which]
        rows = json.loads(path.read_bytes())
        before = rows["first"] - 1 if path == newest else int(path.stem) - 1
        BREAK[how](path)
        left = path.read_bytes() if path.exists() else b""
        if how == "missing" and path == newest and not history:
            assert await find_run(store, "r") is None
            return
        assert (await verify_run(store, "r")).problem is not None
        if path == first and how in ("empty", "missing"):
            with pytest.raises(CorruptCheckpoint):
                await repair_run(store, "r")
            return

        repair = await repair_run(store, "r")

        assert repair.unreadable.get(path.relative_to(run).as_posix(), b"") == left
        if path != newest and how in ("cut off", "a byte"):
            # Only the rows at the end are damaged.
            before += len(rows) - 10
        assert repair.kept >= before
        assert await store.read("r") == written[: repair.kept]
        assert (await verify_run(store, "r")).problem is None
        again = app_on(store)
        assert await tale.resume("r").run(again) == Success([1] * 110)
        assert again.world.done == MANY_WORDS[(repair.kept - 1) // 2 :]
        assert (await verify_run(store, "r")).problem is None


async def test_an_undamaged_entry_in_a_damaged_file_is_kept(tmp_path: Path) -> None:
    async with FileStore(tmp_path) as store:
        written = await told(store)
        path = tmp_path / "sessions" / "r" / "checkpoint.json"
        path.write_bytes(path.read_bytes().replace(b'"version": "1"', b'"version": "7"', 1))

        repair = await repair_run(store, "r")
        assert (repair.kept, repair.lost, repair.runs_again) == (10, 0, ())
        assert not repair.has_unknown_steps
        assert await store.read("r") == written
        assert b'"version": "7"' in repair.unreadable["checkpoint.json"]


async def test_a_repaired_run_can_be_damaged_and_repaired_again(tmp_path: Path) -> None:
    """Nothing that was removed comes back with the older copies of a file."""
    async with FileStore(tmp_path) as store:
        await told(store, [f"word {number}" for number in range(110)])
        await change_entry(store, 150)
        assert (await repair_run(store, "r")).kept == 149
        assert len(list((tmp_path / "sessions" / "r" / "entries").iterdir())) == 1
        await change_entry(store, 149)
        assert (await repair_run(store, "r")).kept == 148
        assert len(await store.read("r")) == 148
    async with FileStore(tmp_path) as store:
        assert len(await store.read("r")) == 148
