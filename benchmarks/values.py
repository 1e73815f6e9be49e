"""What large values cost: a run records one as the output of a step, fails, and is resumed.

    pip install pydantic
    python benchmarks/values.py

The floor is what a journal without any check would do: `pickle.dumps` and `pickle.loads`. All times are
the best of five rounds, in milliseconds of processor time. `loop` is the longest time for which the
thread of the event loop worked without a pause, and `wait` the longest time, by the clock, for which
another task had to wait; both while the value was recorded and while it was resumed.

The goals: 10,000 data classes or models 30 and 60, 100,000 integers 10 and 10; to record 1 MB of bytes 6,
and 20 MB 120. Bytes, and a state of 8 MB, keep the loop for at most 50.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import anyio
from pydantic import BaseModel
from returns.result import Success

from effectflow import Checkpoints, Do, Workflow, effect, step, workflow
from effectflow.stores import MemoryStore

ROUNDS = 5

Format: TypeAlias = Literal["json", "cbor"]


@dataclass(frozen=True)
class Env:
    checkpoints: Checkpoints
    is_down: bool


@dataclass(frozen=True)
class Item:
    name: str
    price: float
    count: int


class Model(BaseModel):
    name: str
    price: float
    count: int


ITEMS = [Item(f"item {number}", number / 3, number) for number in range(10_000)]
MODELS = [Model(name=each.name, price=each.price, count=each.count) for each in ITEMS]
NUMBERS = list(range(100_000))
ONE_MB, TWENTY_MB = os.urandom(1_000_000), os.urandom(20_000_000)
MESSAGES = [
    {"role": "user", "number": number, "content": os.urandom(500).hex(), "reply": None}
    for number in range(8_000)
]


@step
def nothing() -> Do[Env, ConnectionError, None]:
    yield from end()


@effect(errors=ConnectionError)
def end(env: Env) -> None:
    if env.is_down:
        raise ConnectionError("the service is down")


@step
@effect
def items(env: Env) -> list[Item]:
    return ITEMS


@step
@effect
def models(env: Env) -> list[Model]:
    return MODELS


@step
@effect
def numbers(env: Env) -> list[int]:
    return NUMBERS


@step
@effect
def one_mb(env: Env) -> bytes:
    return ONE_MB


@step
@effect
def twenty_mb(env: Env) -> bytes:
    return TWENTY_MB


@step
@effect
def messages(env: Env) -> list[dict[str, Any]]:
    return MESSAGES


@workflow
def of_items() -> Do[Env, ConnectionError, None]:
    yield from items()
    yield from nothing()


@workflow
def of_models() -> Do[Env, ConnectionError, None]:
    yield from models()
    yield from nothing()


@workflow
def of_numbers() -> Do[Env, ConnectionError, None]:
    yield from numbers()
    yield from nothing()


@workflow
def of_one_mb() -> Do[Env, ConnectionError, None]:
    yield from one_mb()
    yield from nothing()


@workflow
def of_twenty_mb() -> Do[Env, ConnectionError, None]:
    yield from twenty_mb()
    yield from nothing()


@workflow
def of_messages() -> Do[Env, ConnectionError, None]:
    yield from messages()
    yield from nothing()


def best(work: Callable[[], object]) -> float:
    """Return the least processor time of some rounds, in milliseconds."""
    times: list[float] = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        times.append(1000 * (time.process_time() - began))
    return min(times)


async def longest_pauses(work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """Return for how many milliseconds at most the loop worked, and another task had to wait."""
    worked, waited = list[float](), list[float]()

    async def look() -> None:
        while True:
            began, spent = time.perf_counter(), time.thread_time()
            await anyio.sleep(0.001)
            worked.append(1000 * (time.thread_time() - spent))
            waited.append(1000 * (time.perf_counter() - began) - 1)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        await anyio.sleep(0.01)
        await work()
        await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    return max(worked), max(waited)


class Case:
    """A run that records a value in a new store, fails, and is resumed."""

    def __init__(self, body: Workflow[Env, ConnectionError, None, None], format: Format) -> None:
        self.body = body
        self.format: Format = format
        self.stores: list[MemoryStore] = []

    async def record(self) -> None:
        self.stores.append(MemoryStore())
        env = Env(Checkpoints(self.stores[-1], format=self.format), is_down=True)
        assert isinstance((await self.body.start(run_id="r").run(env)).failure(), ConnectionError)

    async def resume(self) -> None:
        env = Env(Checkpoints(self.stores.pop(), format=self.format), is_down=False)
        assert await self.body.resume("r").run(env) == Success(None)

    def times(self) -> list[float]:
        """Return what recording and resuming cost, and then for each of them the longest pauses."""
        works = (self.record, self.resume)
        found = [best(lambda work=work: anyio.run(work)) for work in works]
        for work in works:
            rounds = [anyio.run(longest_pauses, work) for _ in range(ROUNDS)]
            found += map(min, zip(*rounds, strict=True))
        return found


def main() -> None:
    rows: list[tuple[str, Workflow[Env, ConnectionError, None, None], Format, object]] = [
        ("10,000 data classes", of_items, "json", ITEMS),
        ("10,000 pydantic models", of_models, "json", MODELS),
        ("100,000 integers", of_numbers, "json", NUMBERS),
        ("8 MB of messages", of_messages, "json", MESSAGES),
        ("1 MB of random bytes", of_one_mb, "json", ONE_MB),
        ("20 MB of random bytes", of_twenty_mb, "json", TWENTY_MB),
        ("20 MB in CBOR", of_twenty_mb, "cbor", TWENTY_MB),
    ]
    print(f"{'':24} record  loop  wait  resume  loop  wait  pickle unpickle")
    for name, body, format, value in rows:
        record, resume, *pauses = Case(body, format).times()
        data = pickle.dumps(value)
        floor = best(lambda value=value: pickle.dumps(value))
        back = best(lambda data=data: pickle.loads(data))
        row = [record, *pauses[:2], resume, *pauses[2:], floor, back]
        print(f"{name:24}", "".join(f"{part:6.0f} " for part in row))


if __name__ == "__main__":
    main()
