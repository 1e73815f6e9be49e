"""What large values cost: a run records one as the output of a step, fails, and is resumed.

    pip install pydantic
    python benchmarks/values.py

The floor is what a journal without any check would do: `pickle.dumps` and `pickle.loads`. All times are
processor times, the best of five rounds.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass

import anyio
from pydantic import BaseModel
from returns.result import Success

from effectflow import Checkpoints, Do, Workflow, effect, step, workflow
from effectflow.stores import MemoryStore

ROUNDS = 5


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


def best(work: Callable[[], object]) -> float:
    """Return the least processor time of some rounds, in milliseconds."""
    times: list[float] = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        times.append(1000 * (time.process_time() - began))
    return min(times)


def recorded_and_resumed(body: Workflow[Env, ConnectionError, None, None]) -> tuple[float, float]:
    """Return what recording and resuming cost, in milliseconds."""
    stores: list[MemoryStore] = []

    def record() -> None:
        stores.append(MemoryStore())
        env = Env(Checkpoints(stores[-1]), is_down=True)
        assert isinstance(anyio.run(body.start(run_id="r").run, env).failure(), ConnectionError)

    def resume() -> None:
        env = Env(Checkpoints(stores.pop()), is_down=False)
        assert anyio.run(body.resume("r").run, env) == Success(None)

    return best(record), best(resume)


def main() -> None:
    bodies = [
        ("10,000 data classes", of_items, ITEMS),
        ("10,000 pydantic models", of_models, MODELS),
        ("100,000 integers", of_numbers, NUMBERS),
        ("1 MB of random bytes", of_one_mb, ONE_MB),
        ("20 MB of random bytes", of_twenty_mb, TWENTY_MB),
    ]
    print(f"{'':24}  record   resume   pickle   unpickle")
    for name, body, value in bodies:
        record, resume = recorded_and_resumed(body)
        data = pickle.dumps(value)
        floor = best(lambda value=value: pickle.dumps(value))
        back = best(lambda data=data: pickle.loads(data))
        print(f"{name:24} {record:4.0f} ms  {resume:4.0f} ms  {floor:4.0f} ms    {back:4.0f} ms")


if __name__ == "__main__":
    main()
