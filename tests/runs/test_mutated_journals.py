"""Journals that are sealed with the right digests, and make no sense: a bug or an attacker wrote them.

All that reads such a journal works, or raises a `CheckpointError` that says what is wrong.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, reduce
from operator import getitem
from typing import Any

import anyio
from hypothesis import HealthCheck, given, settings, strategies as st
from returns.result import Failure

from effectflow import (
    CheckpointError,
    Checkpoints,
    Client,
    Do,
    Effect,
    RetryPolicy,
    Signal,
    bracket,
    compensate,
    fail,
    now,
    par,
    par_all,
    par_traverse,
    publish,
    pure,
    race,
    random,
    saga,
    sleep,
    spawn,
    step,
    with_checkpointing,
    workflow,
)
from effectflow.builders.kinds import job_progress
from effectflow.checkpoint import (
    CorruptCheckpoint,
    RecordedDefect,
    RunStatus,
    find_run,
    read_checkpoint,
    repair_run,
    verify_run,
)
from effectflow.checkpoint.errors import CLASS_CHANGED
from effectflow.effects import first_success, traverse
from effectflow.graphs import StateGraph
from effectflow.iterative import Iterative
from effectflow.machines import Moved, Outcome, Retry, StateMachine, Transition
from effectflow.mapreduce import MapReduce
from effectflow.stores import MemoryStore
from effectflow.testing import TestClock
from tests.apps import App, Broken, World, app_on, note
from tests.runs.journals import AnyWorkflow, act, in_turn
from tests.sealing import payload_of, sealed
from tests.service.conftest import Service
from tests.service.lives import working
from tests.sweeps import examples as examples_of

pause: Signal[str] = Signal("pause", str)
POLICY = RetryPolicy.constant(0).with_max_retries(2)


# Workflows that record all kinds of entries. Each waits for `pause`.


@step
def quote(item: str) -> Effect[App, Broken, str]:
    return note(f"quote {item}").map(lambda _: f"price of {item}")


@step
def decline() -> Effect[App, Broken, str]:
    return note("decline").and_then(lambda _: fail(Broken("declined")))


@step(retry=POLICY)
def confirm(item: str) -> Effect[App, Broken, str]:
    """Wait within a step that is attempted twice, and begin steps of its own."""
    answer = quote(item).and_then(lambda _: pause.wait())
    return answer.and_then(lambda text: note("confirm").map(lambda _: text))


@workflow
def shopping(items: list[str]) -> Do[App, Any, list[str]]:
    prices = yield from traverse(items, quote)
    try:
        yield from decline()
    except Broken:
        yield from publish("progress", len(prices))
    yield from first_success([decline(), quote("tie")])
    yield from race([quote("quick"), sleep(60).map(lambda _: "slow")])
    yield from sleep(0.001)
    yield from bracket(quote("room"), lambda _: quote("close"), lambda _: pure("used"))
    yield from with_checkpointing("outer", in_turn(quote("inner"), quote("inner again")))
    booked = in_turn(compensate(quote("seat"), lambda _: act("undo")), decline())
    yield from saga(booked).fallback("")
    answer = yield from pause.wait().timeout(60).map_err(lambda _: Broken("late"))
    yield from quote(answer)
    return prices


@workflow
def branching(items: list[str]) -> Do[App, Any, str]:
    yield from now()
    yield from par_traverse([*items, "hat", "tie"], quote, key=str, limit=2)
    yield from par_all([decline(), quote("a"), note("unrecorded")]).result()
    yield from quote(str((yield from random()) < 2)).on_exit(publish("progress", 1))
    waits = par(pause.wait(), sleep(0.001), with_checkpointing("nap", sleep(0.001)))
    yield from waits.timeout(60).map_err(lambda _: Broken("late"))
    yield from called.call("x")
    return (yield from quote("end"))


@workflow
def called(item: str) -> Do[App, Broken, str]:
    return (yield from par(quote(item), act("other")).map(lambda both: both[0]))


@workflow
def confirming(items: list[str]) -> Do[App, Any, str]:
    return (yield from confirm(" ".join(items)))


@workflow
def child(item: str) -> Do[App, Broken, str]:
    return (yield from quote(item))


@workflow
def family(items: list[str]) -> Do[App, Any, list[str]]:
    first = yield from spawn(child, " ".join(items))
    second = yield from spawn(child, "failing", is_detached=True)
    found = yield from par(first.result(), second.result().fallback("none"))
    yield from pause.wait()
    return list(found)


def paused(item: str) -> Effect[App, Broken, str]:
    waited = pause.wait() if item == "cap" else pure(item)
    return waited.within(App).and_then(lambda _: note(f"map {item}")).map(lambda _: item)


def shelf(items: list[str]) -> list[str]:
    return [*items, "hat", "failing"]


job: MapReduce[App, Any, Any, Any] = MapReduce(
    "job",
    items=shelf,
    map=paused,
    reduce=lambda words: note("reduce").map(lambda _: " ".join(words)),
    key=str,
    limit=2,
    fan_in=2,
    retry=POLICY,
    on_item_failure="dead_letter",
)
rounds: Iterative[App, Any, list[str]] = Iterative(
    "rounds",
    lambda items: pause.wait().within(App).map(lambda _: items),
    converged=lambda *_: True,
    max_rounds=3,
)
graph = (
    StateGraph[App, Any, list[str]]("graph")
    .node("ask", lambda items: pause.wait().within(App).map(lambda _: items))
    .node("finish", lambda items: note("finish").map(lambda _: items))
    .edge("ask", "finish")
    .entry("ask")
    .exit("finish")
    .build()
)


def approve(_: str) -> Effect[App, Any, Outcome[str]]:
    def decided(count: int) -> Outcome[str]:
        return Retry("again") if count == 1 else Moved("approved")

    return pause.wait().within(App).and_then(lambda _: note("approve")).map(decided)


machine: StateMachine[App, Any, str] = StateMachine(
    "machine",
    initial="new",
    transitions=[Transition("approve", "new", "approved", approve)],
    final={"approved"},
)

ALL: list[tuple[AnyWorkflow, Any]] = [
    *[(made, ["cap"]) for made in (shopping, branching, confirming, family, job, rounds, graph)],
    (machine, None),
]


# Sound journals.


Entries = list[Any]


@dataclass(frozen=True)
class Sound:
    """A workflow with its input, and the journals of runs that ended in several ways."""

    workflow: AnyWorkflow
    input: Any
    journals: list[Entries]


ENDINGS: list[tuple[set[str], str]] = [
    ({"failing", "quote failing", "map failing", "confirm#1"}, "completed"),
    ({"quote go", "quote end", "confirm", "reduce", "finish"}, "failed"),
    (set(), "suspended"),
    (set(), "cancelled"),
]
"""The actions that fail in a run, and how it ends, if they are actions of its workflow."""


@cache
def sound_runs() -> list[Sound]:
    """Return the journals of complete, suspended, failed, cancelled, resumed and crashed runs."""
    runs = [Sound(made, input, []) for made, input in ALL]

    async def live() -> None:
        async with anyio.create_task_group() as tasks:
            for sound in runs:
                for failing, ending in ENDINGS:
                    tasks.start_soon(_live, sound, failing, ending)

    anyio.run(live)
    return runs


async def _live(sound: Sound, failing: set[str], ending: str) -> None:
    """Live the lives of a run, and keep its journals."""
    made, service = sound.workflow, Service(MemoryStore(), World(failing=set(failing)))

    async def keep(*, without: int = 0) -> None:
        records = await service.store.read("r")
        sound.journals.append(payloads_of([one.body for one in records[: len(records) - without]]))

    async with working(service, made, child) as worker:
        handle = await worker.client.submit(made, sound.input, run_id="r")
        await _rested(service)
        if ending == "cancelled":
            await handle.cancel()
        elif ending != "suspended":
            for _ in range(3):
                await handle.send(pause, "go")
        if ending != "suspended":
            await handle.result(timeout=10)
    await keep()
    await keep(without=2)
    if await handle.status() is RunStatus.FAILED:
        service.world.recover()
        await TestClock().run(made.resume("r"), App(service.checkpoints(), service.world))
        await keep()


async def _rested(service: Service) -> None:
    """Wait until the run has ended, or waits for nothing but a message."""
    with anyio.fail_after(10):
        while True:
            found = await service.store.find()
            soon = time.time() + 5
            if all(one.lease is None and (one.summary.due_at or math.inf) > soon for one in found):
                return
            await anyio.sleep(0.003)


def payloads_of(bodies: Sequence[bytes]) -> Entries:
    """Return the entries in a journal, as docs/format.md describes them, without their digests."""
    return [json.loads(payload_of(body)) for body in bodies]


# Mutations.


STRANGE: list[Any] = [
    *[None, True, 0, -1, 1, 2, 10**6, 10**30, 0.5],
    *["", "x", "quote", "a[0]/b", "failed", "cancelled", "completed"],
    *[[], {}, [[1]], [[1, 2]], [[2, 1]], [[1, 10**12]], {"args": [], "state": {}}],
]
"""Values that a part of an entry may have after a mutation."""

KINDS = ["remove", "duplicate", "move", "swap", "insert", "cut", "drop", "set", "copy"]

NUMBER = st.integers(0, 10**6)


@dataclass(frozen=True)
class Mutation:
    """A change of one place. The numbers choose among what there is."""

    kind: str
    place: int
    another: int
    part: int
    strange: int


MUTATIONS = st.lists(
    st.builds(Mutation, st.sampled_from(KINDS), NUMBER, NUMBER, NUMBER, NUMBER),
    min_size=1,
    max_size=3,
)


Path = tuple[Any, ...]
"""The names and positions that lead to a part of an entry."""


def mutate(entries: Entries, others: Entries, change: Mutation) -> None:
    """Change a journal in one place. `others` has entries of all journals."""
    place, another = change.place % len(entries), change.another % len(entries)
    entry = entries[place]
    match change.kind:
        case "remove" if len(entries) > 1:
            del entries[place]
        case "duplicate":
            entries.insert(another, entry)
        case "move":
            entries.insert(another, entries.pop(place))
        case "swap":
            entries[place], entries[another] = entries[another], entry
        case "insert":
            entries.insert(place, others[change.another % len(others)])
        case "cut":
            del entries[max(place, 1) :]
        case kind:
            paths = list(_parts_of(entry))
            path = paths[change.part % len(paths)]
            if kind == "copy":
                from_other = [one for one in _parts_of(entries[another]) if one[-1] == path[-1]]
                if not from_other:
                    return
                given = _part_at(entries[another], from_other[change.strange % len(from_other)])
            else:
                given = STRANGE[change.strange % len(STRANGE)]
            entries[place] = _with_part(entry, path, given, is_dropped=kind == "drop")


def _parts_of(tree: Any, path: Path = ()) -> list[Path]:
    """Return the paths of all parts of an entry."""
    found = [path] if path else []
    for name in _names_in(tree):
        found += _parts_of(tree[name], (*path, name))
    return found


def _names_in(tree: Any) -> Sequence[Any]:
    return (
        range(len(tree)) if isinstance(tree, list) else list(tree) if isinstance(tree, dict) else ()
    )


def _part_at(tree: Any, path: Path) -> Any:
    return reduce(getitem, path, tree)


def _with_part(tree: Any, path: Path, given: Any, *, is_dropped: bool) -> Any:
    """Return a copy of an entry with another part, or without it."""
    copied = deepcopy(tree)
    around = _part_at(copied, path[:-1])
    if is_dropped:
        del around[path[-1]]
    else:
        around[path[-1]] = given
    return copied


# What reads journals.


async def write(store: MemoryStore, sound: Sound, entries: Entries, *, has_ended: bool) -> None:
    """Write entries with digests that fit, as a run that ended as its last entry says, or crashed."""
    digest, bodies = hashlib.sha256(b"r").digest(), list[bytes]()
    for entry in entries:
        payload = json.dumps(entry, separators=(",", ":"), ensure_ascii=False).encode()
        body, digest = sealed(payload, digest)
        bodies.append(body)
    await Client(Checkpoints(store)).submit(sound.workflow, sound.input, run_id="r")
    info = await find_run(store, "r")
    assert info is not None
    await store.delete("r")
    status = RunStatus.RUNNING
    if has_ended and entries[-1].get("status") in ("completed", "failed"):
        status = RunStatus(entries[-1]["status"])
    await store.create("r", bodies, summary=replace(info.summary, status=status))


async def drop_in_a_copy(sound: Sound, entries: Entries) -> None:
    """Drop the dead letters of another run with the same journal."""
    store = MemoryStore()
    await write(store, sound, entries, has_ended=True)
    with anyio.move_on_after(0.3):
        await TestClock().run(sound.workflow.drop_dead_letters("r"), app_on(store))


async def problems_with(sound: Sound, entries: Entries, *, has_ended: bool) -> list[str]:
    """Return the unexpected errors of all that reads a journal."""
    problems: list[str] = []
    store, made = MemoryStore(), sound.workflow
    await write(store, sound, entries, has_ended=has_ended)
    app = app_on(store)
    handle = Client(app.checkpoints).handle(made, "r")

    async def attempt(what: str, reading: Callable[[], Awaitable[Any]]) -> Any:
        try:
            with anyio.fail_after(5):
                return await reading()
        except (CheckpointError, Broken, RecordedDefect) as expected:
            return Failure(expected)
        except Exception as unexpected:
            problems.append(f"{what}: {unexpected!r}")
            return None

    async def resumed() -> Any:
        """Resume the run, and stop it if it waits."""
        with anyio.move_on_after(0.3):
            return await TestClock().run(made.resume("r"), app)

    found = await attempt("verify", lambda: verify_run(store, "r"))
    checkpoint = await attempt("checkpoint", lambda: read_checkpoint(store, "r"))
    if not isinstance(checkpoint, Failure | None):
        job_progress(checkpoint)
    await attempt("plan", lambda: made.plan("r").run(app))
    await attempt("drop", lambda: drop_in_a_copy(sound, entries))
    await attempt("published", lambda: handle.published("progress"))
    for _ in range(3):
        await attempt("send", lambda: handle.send(pause, "go"))
    result = await attempt("resume", resumed)
    await attempt("resume again", resumed)
    await attempt("result", lambda: made.result("r").run(app))
    await attempt("repair", lambda: repair_run(store, "r"))
    is_corrupt = isinstance(result, Failure) and isinstance(result.failure(), CorruptCheckpoint)
    # Only the code of the workflow tells which type an output has, and what an operation records.
    is_about_code = CLASS_CHANGED in str(result) or "no sense for" in str(result)
    if is_corrupt and not is_about_code and getattr(found, "problem", None) is None:
        problems.append(f"verify does not find what the resume found: {result}")
    return problems


@examples_of(60, 10_000)
def test_a_journal_that_makes_no_sense_is_an_error_that_says_so(examples: int) -> None:
    @settings(max_examples=examples, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.integers(0, len(ALL) - 1), NUMBER, MUTATIONS, st.booleans())
    def check(number: int, journal: int, changes: list[Mutation], has_ended: bool) -> None:
        sound = sound_runs()[number]
        entries = list(sound.journals[journal % len(sound.journals)])
        others = [entry for one in sound.journals for entry in one]
        for change in changes:
            mutate(entries, others, change)
        problems = anyio.run(lambda: problems_with(sound, entries, has_ended=has_ended))
        assert not problems, "\n".join(problems)

    check()
