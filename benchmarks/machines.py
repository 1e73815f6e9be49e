"""What a step of a state machine costs, in memory and on SQLite, in one process.

    python benchmarks/machines.py

In memory it is compared with a plain async loop that does the same: it chooses by the state, awaits an
action, checks where that leads, counts the attempts, and keeps the history. What comes on top is what
the loop has not: an immutable machine at each step, which can be saved, a step that has a path and can
be asked about, and effects.

On SQLite it is compared with a plain `@step` of a `@workflow`, which commits as often.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

import anyio

from effectflow import Checkpoints, Do, Effect, SqliteStore, Workflow, do, pure, step, workflow
from effectflow.machines import Machine, Moved, StateMachine, Transition

ROUNDS = 7
DURABLE_STEPS = 1_000


class Light(Enum):
    RED = "red"
    GREEN = "green"
    YELLOW = "yellow"
    OUT = "out"


NEXT = {Light.RED: Light.GREEN, Light.GREEN: Light.YELLOW, Light.YELLOW: Light.RED}


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints


def turn(light: Light) -> Effect[object, str, Moved[Light]]:
    return pure(Moved(NEXT[light]))


def is_lit(light: Light) -> bool:
    return light is not Light.OUT


LIGHTS = StateMachine(
    "lights",
    initial=Light.RED,
    transitions=[
        Transition("go", Light.RED, Light.GREEN, turn, is_lit),
        Transition("slow", Light.GREEN, Light.YELLOW, turn),
        Transition("stop", Light.YELLOW, Light.RED, turn),
        Transition("fail", Light.RED, Light.OUT),
    ],
    final={Light.OUT},
)


async def plain_loop(steps: int) -> None:
    """What the machine does, by hand, on mutable state."""

    async def turn_by_hand(light: Light) -> Light:
        return NEXT[light]

    names = {Light.RED: "go", Light.GREEN: "slow", Light.YELLOW: "stop"}
    state = Light.RED
    history: list[tuple[str, Light, Light, datetime, int]] = []
    attempts: dict[str, int] = {}
    for _ in range(steps):
        if not is_lit(state):
            break
        name = names[state]
        reached = await turn_by_hand(state)
        if reached is not NEXT[state]:
            raise ValueError(reached)
        attempts[name] = attempts.get(name, 0) + 1
        history.append((name, state, reached, datetime.now(UTC), 1))
        state = reached


@do
def machine_in_memory(steps: int) -> Do[object, object, Machine[Light]]:
    machine = LIGHTS.begin()
    for _ in range(steps):
        machine = yield from LIGHTS.step(machine)
    return machine


@step
def turn_step(light: Light) -> Effect[object, str, Light]:
    return pure(NEXT[light])


@workflow
def turn_by_steps(steps: int) -> Do[App, str, Light]:
    light = Light.RED
    for _ in range(steps):
        light = yield from turn_step(light)
    return light


@workflow
def turn_by_machine(steps: int) -> Do[App, object, Light]:
    machine = yield from machine_in_memory(steps)
    return machine.current


async def processor_seconds(work: Awaitable[object]) -> float:
    """What else the computer does meanwhile does not count."""
    began = time.process_time()
    await work
    return time.process_time() - began


async def in_memory() -> None:
    for steps in (100, 1_000, 10_000):
        plain, machine = list[float](), list[float]()
        for _ in range(ROUNDS):
            plain.append(await processor_seconds(plain_loop(steps)) / steps * 1e6)
            machine.append(
                await processor_seconds(machine_in_memory(steps).run(None)) / steps * 1e6
            )
        overhead = min(machine) - min(plain)
        print(
            f"{steps:>6,} steps: plain loop {min(plain):4.1f} us a step, machine {min(machine):4.1f} "
            f"us, overhead {overhead:4.1f} us (to reach: 10)"
        )


async def one_run(path: Path, work: Workflow[App, object, int, Light]) -> float:
    """Seconds for each step of a durable run."""
    async with SqliteStore(path) as store:
        began = time.perf_counter()
        await work.start(DURABLE_STEPS).run_or_raise(App(Checkpoints(store)))
        return (time.perf_counter() - began) / DURABLE_STEPS


async def durable(folder: Path) -> None:
    ratios: list[float] = []
    for number in range(ROUNDS):
        # In pairs: disks change their mind from one second to the next.
        plain = await one_run(folder / f"step{number}.db", turn_by_steps)
        machine = await one_run(folder / f"machine{number}.db", turn_by_machine)
        ratios.append(machine / plain)
        print(f"@step {plain * 1e6:5.0f} us, step of a machine {machine * 1e6:5.0f} us")
    print(f"durable: a step of a machine takes {statistics.median(ratios):.2f} times a plain @step")


def main() -> None:
    anyio.run(in_memory)
    with tempfile.TemporaryDirectory() as name:
        anyio.run(durable, Path(name))


if __name__ == "__main__":
    main()
