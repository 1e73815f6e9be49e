"""What the checkers infer for services. Never run: checked by pyright and mypy."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Never, assert_type

from returns.result import Result

from effectflow import (
    App,
    CheckpointError,
    Checkpoints,
    Client,
    Do,
    Effect,
    HasCheckpoints,
    Signal,
    TimedOut,
    Worker,
    Workflow,
    compensate,
    publish,
    pure,
    saga,
    spawn,
    workflow,
)
from effectflow.checkpoint import RunConflict, RunInfo, RunStatus
from effectflow.service import Child, Handle, Schedule


class Refused(Exception):
    pass


@dataclass(frozen=True)
class Shop:
    checkpoints: Checkpoints
    bank: str


@dataclass(frozen=True)
class Bare:
    name: str


@dataclass(frozen=True)
class Decision:
    approved: bool


approval = Signal("approval", Decision)
number = Signal[int | None]("number", int | None)


@workflow
def order(item: str) -> Do[Shop, Refused | TimedOut, int]:
    decision = yield from approval.wait().timeout(60)
    assert_type(decision, Decision)
    yield from publish("progress", 1)
    if not decision.approved:
        raise Refused
    return 1


@workflow
def orders(items: list[str]) -> Do[Shop, Refused | TimedOut, int]:
    total = 0
    for item in items:
        child = yield from spawn(order, item)
        assert_type(child, Child[Refused | TimedOut, int])
        total += yield from child.result()
    return total


@workflow
def orders_of_their_own(item: str) -> Do[Shop, RunConflict, str]:
    child = yield from spawn(order, item, run_id=f"order of {item}")
    return child.run_id


@workflow
def needing_nothing(item: str) -> Do[object, Refused, str]:
    yield from spawn(order, 5)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    yield from spawn(order, item, run_id="taken")  # type: ignore[misc]  # pyright: ignore[reportReturnType]
    return item


@workflow(version="2")
def needing_nothing_again() -> Effect[object, Refused, str]:
    return pure("nothing")


assert_type(needing_nothing, Workflow[HasCheckpoints, Refused, str, str])
assert_type(needing_nothing_again, Workflow[HasCheckpoints, Refused, None, str])


def signals() -> None:
    assert_type(approval.wait(), Effect[object, Never, Decision])
    assert_type(number.wait(), Effect[object, Never, int | None])
    assert_type(Signal("flag", bool), Signal[bool])


def charge(amount: int) -> Effect[Shop, Refused, str]:
    return pure(str(amount))


def refund(receipt: str) -> Effect[Shop, TimedOut, None]:
    return pure(None)


def count(receipt: int) -> Effect[Shop, Never, None]:
    return pure(None)


charged = compensate(charge(1), refund)
assert_type(charged, Effect[Shop, Refused, str])
assert_type(compensate(charge(1), lambda receipt: refund(receipt)), Effect[Shop, Refused, str])
assert_type(saga(charged), Effect[Shop, Refused, str])
assert_type(saga(charged.map(len).timeout(3)), Effect[Shop, Refused | TimedOut, int])
compensate(charge(1), count)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@workflow
def sell(amount: int) -> Do[Shop, Refused, int]:
    receipt = yield from saga(charged)
    assert_type(receipt, str)
    return len(receipt)


async def clients(client: Client) -> None:
    handle = await client.submit(order, "cap")
    assert_type(handle, Handle[Refused | TimedOut, int])
    assert_type(await handle.result(), Result[int, Refused | TimedOut | CheckpointError])
    assert_type(client.handle(order, "r"), Handle[Refused | TimedOut, int])
    assert_type(await handle.status(), RunStatus)
    assert_type(await handle.published("progress"), object)
    assert_type(await client.find(), list[RunInfo])
    await handle.send(approval, Decision(approved=True))
    await handle.send(number, None)
    await handle.send(approval, True)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await client.submit(order, 1)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]


async def workers(checkpoints: Checkpoints) -> None:
    def environment(checkpoints: Checkpoints) -> Shop:
        return Shop(checkpoints, "bank")

    app = App([order, orders], environment=environment, checkpoints=checkpoints)
    assert_type(app, App[Shop])

    async def later(checkpoints: Checkpoints) -> Shop:
        return Shop(checkpoints, "bank")

    @contextmanager
    def entered(checkpoints: Checkpoints) -> Generator[Shop]:
        yield Shop(checkpoints, "bank")

    @asynccontextmanager
    async def entered_later(checkpoints: Checkpoints) -> AsyncGenerator[Shop]:
        yield Shop(checkpoints, "bank")

    assert_type(App([order], environment=later, checkpoints=checkpoints), App[Shop])
    assert_type(App([order], environment=entered, checkpoints=checkpoints), App[Shop])
    assert_type(App([order], environment=entered_later, checkpoints=checkpoints), App[Shop])
    assert_type(Schedule(order, "30 2 * * *", input="cap"), Schedule[str])
    async with Worker(app) as worker:
        assert_type(worker, Worker[Shop])
        assert_type(worker.client, Client)


def another_environment(checkpoints: Checkpoints) -> None:
    def environment(_: Checkpoints) -> Bare:
        return Bare("bare")

    App([order], environment=environment, checkpoints=checkpoints)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
