"""What the tools for tests accept as `environment`. Never run, only type-checked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Never

from effectflow import Checkpoints, Do, Effect, pure, step, workflow
from effectflow.checkpoint import CheckpointStore
from effectflow.testing import crash_everywhere, explore


@dataclass
class Shop:
    checkpoints: Checkpoints
    open: bool = True


@step
def charge(amount: int) -> Effect[Shop, Never, int]:
    return pure(amount)


@workflow
def order(amount: int) -> Do[Shop, Never, int]:
    return (yield from charge(amount))


def plain(store: CheckpointStore) -> Shop:
    return Shop(Checkpoints(store))


async def later(store: CheckpointStore) -> Shop:
    return Shop(Checkpoints(store))


@contextmanager
def entered(store: CheckpointStore) -> Generator[Shop]:
    yield Shop(Checkpoints(store))


@asynccontextmanager
async def entered_later(store: CheckpointStore) -> AsyncGenerator[Shop]:
    yield Shop(Checkpoints(store))


async def use() -> None:
    await crash_everywhere(order, 5, plain)
    await crash_everywhere(order, 5, later)
    await crash_everywhere(order, 5, entered)
    await crash_everywhere(order, 5, entered_later)
    await crash_everywhere(order, 5, lambda store: Shop(Checkpoints(store)))
    await explore(order, 5, plain, check=lambda result, shop: result.unwrap() == 5 and shop.open)
    await explore(order, 5, later)
    await explore(order, 5, entered)
    await explore(order, 5, entered_later)
    await explore(order, 5, lambda store: store)  # type: ignore[arg-type, return-value]  # pyright: ignore[reportArgumentType]
