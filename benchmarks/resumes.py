"""What a resume costs for each step of the past, after 1,000 and after 100,000, in a MemoryStore.

    python benchmarks/resumes.py [KIND ...]

A program of each kind runs that many steps, fails in the last one, and is resumed to its end, in a
process of its own. Time is that of the processor. The floor does what no resume can leave out: it checks
the chain of digests of the same journal, and parses its entries. A step must not cost more because
there are many. `blocked` is the longest time in which the resume let no other task of its event loop
run, and the bytes are those by which the peak of the process grew, for each step.

The exit status is 1 if a bound is missed.
"""

from __future__ import annotations

import hashlib
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Never

import anyio
import anyio.lowlevel
import orjson

from effectflow import (
    Checkpoints,
    Client,
    Do,
    Effect,
    Signal,
    Workflow,
    bracket,
    compensate,
    do,
    effect,
    now,
    par,
    par_traverse,
    publish,
    pure,
    race,
    saga,
    sleep,
    spawn,
    step,
    workflow,
)
from effectflow.checkpoint import CheckpointPolicy
from effectflow.checkpoint.integrity import digest_in, first_digest
from effectflow.effects import from_async
from effectflow.graphs import StateGraph
from effectflow.iterative import Iterative
from effectflow.machines import Moved, StateMachine, Transition
from effectflow.mapreduce import MapReduce
from effectflow.stores import MemoryStore

SHORT, WIDE, LONG = 1_000, 10_000, 100_000
MOST, MOST_GROWTH = 40, 1.5
AnyWorkflow = Workflow[Any, Any, Any, Any]
Units = Callable[[int], Effect[Any, Any, Any]]


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints
    down: list[bool] = field(default_factory=lambda: [True])
    turns: list[object] = field(default_factory=list[object])


class Light(Enum):
    RED = "red"
    GREEN = "green"
    OUT = "out"


NEXT = {Light.RED: Light.GREEN, Light.GREEN: Light.RED}


@step
@effect
def last(app: App) -> None:
    if app.down:
        raise ConnectionError("down")


@step
def one(number: int) -> Effect[object, Never, int]:
    return pure(number)


@step
def outer(number: int) -> Effect[object, Never, int]:
    return one(number)


@step
def containing(steps: int) -> Do[App, Exception, None]:
    for number in range(steps):
        yield from one(number)
    yield from last()


go, other = Signal("go", int), Signal("other", int)


@workflow
def child(number: int) -> Effect[object, Never, int]:
    return pure(number)


def followed_by_last(effect: Effect[App, Exception, Any]) -> AnyWorkflow:
    @workflow(name="w")
    def body() -> Do[App, Exception, None]:
        yield from effect
        yield from last()

    return body


async def elsewhere(_: object) -> int:
    await anyio.lowlevel.checkpoint()
    return 1


def loop(unit: Units) -> Callable[[int], AnyWorkflow]:
    @do
    def repeated(units: int) -> Do[App, Exception, None]:
        for number in range(units):
            yield from unit(number)

    return lambda units: followed_by_last(repeated(units))


def at_once(unit: Units) -> Callable[[int], AnyWorkflow]:
    return lambda units: followed_by_last(par_traverse(range(units), unit))


@do
def undone(units: int) -> Do[App, Exception, None]:
    for number in range(units):
        yield from compensate(one(number), one)


@do
def in_branches(units: int) -> Do[App, Exception, None]:
    @do
    def branch(number: int) -> Do[App, Exception, None]:
        for _ in range(units // 100):
            yield from one(number)

    yield from par_traverse(range(100), branch)


def iteration(units: int) -> AnyWorkflow:
    @effect
    def round(app: App, value: int) -> int:
        if value == units and app.down:
            raise ConnectionError("down")
        return value + 1

    return Iterative("w", round, converged=lambda _, value: value > units, max_rounds=units + 1)


def graph(units: int) -> AnyWorkflow:
    @effect
    def add(app: App, value: int) -> int:
        return value + 1

    @effect
    def end(app: App, value: int) -> int:
        if app.down:
            raise ConnectionError("down")
        return value

    return (
        StateGraph[App, Exception, int]("w", max_iterations=units + 1)
        .node("add", add)
        .node("end", end)
        .edge("add", "end", when=lambda value: value >= units)
        .edge("add", "add")
        .entry("add")
        .exit("end")
        .build()
    )


def machine(units: int) -> AnyWorkflow:
    @effect
    def turn(app: App, light: Light) -> Moved[Light]:
        app.turns.append(light)
        if app.down and len(app.turns) > units:
            raise ConnectionError("down")
        return Moved(Light.OUT if not app.down else NEXT[light])

    return StateMachine(
        "w",
        initial=Light.RED,
        transitions=[
            Transition("go", Light.RED, {Light.GREEN, Light.OUT}, turn),
            Transition("stop", Light.GREEN, {Light.RED, Light.OUT}, turn),
        ],
        final={Light.OUT},
    )


def job(units: int) -> AnyWorkflow:
    def numbers(count: int) -> range:
        return range(units)

    @effect
    def total(app: App, values: list[int]) -> int:
        if app.down:
            raise ConnectionError("down")
        return sum(values)

    return MapReduce("w", items=numbers, map=pure, reduce=total, key=str, limit=100)


PROGRAMS: dict[str, Callable[[int], AnyWorkflow]] = {
    "plain steps": loop(one),
    "steps of one step": loop(outer),
    "a step with all the steps": lambda units: followed_by_last(containing(units)),
    "timeout": loop(lambda number: one(number).timeout(1000)),
    "bracket": loop(lambda number: bracket(pure(1), lambda _: pure(None), lambda _: one(number))),
    "par of two": loop(lambda number: par(one(number), one(number))),
    "race of two": loop(lambda number: race(one(number), one(number))),
    "par of all": at_once(one),
    "100 branches": lambda units: followed_by_last(in_branches(units)),
    "par of timeouts": at_once(lambda number: one(number).timeout(1000)),
    "par of races": at_once(lambda number: race(one(number), one(number))),
    "par of local code": at_once(lambda _: from_async(elsewhere)),
    "par with limit": lambda units: followed_by_last(par_traverse(range(units), one, limit=100)),
    "local code": loop(lambda _: from_async(elsewhere)),
    "values": loop(lambda _: now()),
    "sleeps": loop(lambda _: sleep(1e-6)),
    "published values": loop(lambda number: publish("n", number)),
    "spawned runs": loop(lambda number: spawn(child, number)),
    "messages": loop(lambda _: go.wait()),
    "messages beside unread ones": loop(lambda _: go.wait()),
    "saga": lambda units: followed_by_last(saga(undone(units))),
    "iteration": iteration,
    "graph": graph,
    "machine": machine,
    "map-reduce": job,
}
AT_ONCE = {kind for kind in PROGRAMS if kind.startswith("par of") and kind != "par of two"}
# A branch is a task of the event loop in each life, and a bracket shields its ends.
GOALS = {"bracket": 120, "par of two": 200, "race of two": 200, "saga": 100, "machine": 100}
GOALS |= dict.fromkeys(AT_ONCE, 400)
WITHOUT_INPUT = PROGRAMS.keys() - {"iteration", "graph", "map-reduce"}


async def measure(kind: str, units: int) -> dict[str, float]:
    program = PROGRAMS[kind](units)
    given = None if kind in WITHOUT_INPUT else 0
    store = MemoryStore()
    async with store:
        app = App(Checkpoints(store, policy=CheckpointPolicy(every_steps=100)))
        async with Client(app.checkpoints) as client:
            handle = await client.submit(program, given, run_id="r")
            for number in range(units if "messages" in kind else 0):
                await handle.send(go, number)
                if "unread" in kind:
                    await handle.send(other, number)
        first = time.process_time()
        with suppress(ConnectionError):
            await program.resume("r").run(app)
        first = time.process_time() - first
        floor = time.process_time()
        await read_and_check(store)
        floor = time.process_time() - floor
        app.down.clear()
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        resumed, blocked = time.process_time(), 0.0
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                nonlocal blocked
                seen = time.perf_counter()
                while True:
                    await anyio.lowlevel.checkpoint()
                    now = time.perf_counter()
                    blocked, seen = max(blocked, now - seen), now

            tasks.start_soon(watch)
            await program.resume("r").run_or_raise(app)
            tasks.cancel_scope.cancel()
        resumed = time.process_time() - resumed
    return {
        "first": first / units * 1e6,
        "resumed": resumed / units * 1e6,
        "floor": floor / units * 1e6,
        "blocked": blocked * 1e3,
        "memory": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) * 1024 / units,
    }


async def read_and_check(store: MemoryStore) -> None:
    """Check the chain of digests of the journal, and parse its entries."""
    digest = first_digest("r")
    for record in await store.read("r"):
        payload, written = record.body.rpartition(b"\n")[0], digest_in(record)
        digest = hashlib.sha256(digest + payload).digest()[: len(written)]
        assert digest == written
        orjson.loads(payload)


def measured(kind: str, units: int) -> dict[str, float]:
    """Measure in a process of its own."""
    command = [sys.executable, __file__, "--measure", kind, str(units)]
    return json.loads(subprocess.check_output(command, text=True))


def main() -> None:
    are_kept = True
    print(f"{'':<28}{'us a step':>10}{'floor':>7}{'growth':>8}{'blocked':>9}{'bytes':>8}")
    for kind in sys.argv[1:] or PROGRAMS:
        # Branches that all run at once are in memory at once.
        short, long = measured(kind, SHORT), measured(kind, WIDE if kind in AT_ONCE else LONG)
        growth, goal = long["resumed"] / short["resumed"], GOALS.get(kind, MOST)
        is_kept = long["resumed"] <= goal and growth <= MOST_GROWTH
        are_kept = are_kept and is_kept
        print(
            f"{kind:<28}{long['resumed']:10.1f}{long['floor']:7.1f}{growth:8.2f}{long['blocked']:6.0f} ms"
            f"{long['memory']:8,.0f}  (to reach: {goal} us, growth {MOST_GROWTH})"
            f"{'' if is_kept else '   MISSED'}"
        )
    sys.exit(not are_kept)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(anyio.run(measure, sys.argv[2], int(sys.argv[3]))))
    else:
        main()
