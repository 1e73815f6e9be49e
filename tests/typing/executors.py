"""What the checkers infer for work on executors. Never run: checked by pyright and mypy."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Never, assert_type

from effectflow import Effect, effect, par_traverse, pure
from effectflow.effects import Executor, ExecutorError
from effectflow.executors import DaskExecutor, LocalExecutor, ProcessExecutor


class Shop:
    name = "shop"


class Bank:
    name = "bank"


class OutOfStock(Exception): ...


@effect(errors=OutOfStock)
def price_of(shop: Shop, item: str) -> int:
    return len(shop.name + item)


def make_shop() -> Shop:
    return Shop()


@asynccontextmanager
async def opened_shop() -> AsyncGenerator[Shop]:
    yield Shop()


@contextmanager
def plainly_opened_shop() -> Generator[Shop]:
    yield Shop()


async def load_shop() -> Shop:
    return Shop()


assert_type(LocalExecutor().apply(price_of, "cap"), Effect[Shop, OutOfStock, int])

assert_type(ProcessExecutor(), ProcessExecutor[None])
assert_type(ProcessExecutor(make_shop), ProcessExecutor[Shop])
assert_type(ProcessExecutor(opened_shop, limit=2), ProcessExecutor[Shop])
assert_type(ProcessExecutor(plainly_opened_shop), ProcessExecutor[Shop])
assert_type(ProcessExecutor(load_shop), ProcessExecutor[Shop])
assert_type(DaskExecutor("tcp://scheduler:8786"), DaskExecutor[None])
assert_type(DaskExecutor("tcp://scheduler:8786", make_shop), DaskExecutor[Shop])
assert_type(DaskExecutor("tcp://scheduler:8786", opened_shop), DaskExecutor[Shop])
assert_type(DaskExecutor("tcp://scheduler:8786", plainly_opened_shop), DaskExecutor[Shop])
assert_type(DaskExecutor("tcp://scheduler:8786", load_shop), DaskExecutor[Shop])

processes = ProcessExecutor(make_shop)
assert_type(processes.apply(price_of, "cap"), Effect[object, OutOfStock | ExecutorError, int])
assert_type(
    par_traverse(["cap"], lambda item: processes.apply(price_of, item)),
    Effect[object, OutOfStock | ExecutorError, list[int]],
)
assert_type(ProcessExecutor().apply(pure, 1), Effect[object, ExecutorError, int])

# Any of them is an Executor, which does not say what is where it runs things.
executors: list[Executor] = [LocalExecutor(), processes, DaskExecutor("tcp://scheduler:8786")]
assert_type(executors[0].apply(price_of, "cap"), Effect[Any, OutOfStock | ExecutorError, int])
assert_type(price_of("cap").on_executor(processes), Effect[Any, OutOfStock | ExecutorError, int])


# What must be rejected: another environment than there is, and another item.
def balance_of(account: str) -> Effect[Bank, Never, int]:
    return pure(len(account))


processes.apply(balance_of, "a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
processes.apply(price_of, 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
