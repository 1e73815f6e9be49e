"""What the checkers infer for durable work. Never run: checked by pyright and mypy."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Never, assert_type

import psycopg
from returns.result import Result

from effectflow import (
    CheckpointError,
    Checkpoints,
    Do,
    Effect,
    HasCheckpoints,
    RetryPolicy,
    TimedOut,
    Workflow,
    current_step,
    effect,
    fail,
    pure,
    step,
    transaction,
    with_checkpointing,
    workflow,
)
from effectflow.checkpoint import ResumePlan, StepInfo, patched, started_version


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints


@dataclass(frozen=True)
class Bare:
    name: str


class PaymentError(Exception): ...


@step
def charge(amount: int) -> Effect[App, PaymentError, str]:
    return pure(str(amount))


@step(name="charge twice", at_most_once=True)
def charge_twice(amount: int) -> Do[App, PaymentError, str]:
    first = yield from charge(amount)
    assert_type(first, str)
    return first


@step
@effect(errors=PaymentError)
async def refund(app: App, amount: int) -> str:
    return str(amount)


@transaction
def reserve(connection: sqlite3.Connection, seat: str, *, guest: str) -> int:
    return connection.execute("INSERT INTO seats VALUES (?, ?)", (seat, guest)).rowcount


@transaction(errors=PaymentError, retry=RetryPolicy.constant(1).with_max_retries(3))
async def book(connection: psycopg.AsyncConnection[Any], seat: str) -> str:
    await connection.execute("INSERT INTO seats VALUES (%s)", (seat,))
    return seat


@transaction(name="release", errors=(PaymentError, KeyError))
def release(connection: sqlite3.Connection, seat: str) -> None: ...


assert_type(reserve("A1", guest="ann"), Effect[object, Never, int])
assert_type(book("A1"), Effect[object, PaymentError, str])
assert_type(release("A1"), Effect[object, PaymentError | KeyError, None])
reserve(1, guest="ann")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
reserve("A1")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

assert_type(refund(1), Effect[App, PaymentError, str])
assert_type(charge(1), Effect[App, PaymentError, str])
assert_type(charge_twice(1), Effect[App, PaymentError, str])
assert_type(with_checkpointing("pay", charge(1)), Effect[App, PaymentError, str])
assert_type(charge(1).checkpointed("pay"), Effect[App, PaymentError, str])


POLICY = RetryPolicy.constant(1).with_max_retries(3)


@step(retry=POLICY)
def charge_again(amount: int) -> Effect[App, PaymentError, str]:
    return pure(str(amount))


@step(timeout=30)
def charge_in_time(amount: int) -> Effect[App, PaymentError, str]:
    return pure(str(amount))


@step(retry=POLICY, timeout=timedelta(seconds=30))
def charge_again_in_time(amount: int) -> Do[App, PaymentError, str]:
    return (yield from charge(amount))


@step(timeout=30)
@effect
def note(app: App, amount: int) -> str:
    assert_type(current_step(), StepInfo)
    return current_step().idempotency_key


# A timeout adds TimedOut, for a retry alone the last error remains.
assert_type(charge_again(1), Effect[App, PaymentError, str])
assert_type(charge_in_time(1), Effect[App, PaymentError | TimedOut, str])
assert_type(charge_again_in_time(1), Effect[App, PaymentError | TimedOut, str])
assert_type(note(1), Effect[App, TimedOut, str])
assert_type(started_version(), Effect[object, Never, str | None])
assert_type(patched("vat"), Effect[object, Never, bool])


@workflow
def pay(amount: int) -> Do[App, PaymentError, str]:
    return (yield from charge(amount))


@workflow(version="2")
def pay_by_effect(amount: int) -> Effect[App, PaymentError, str]:
    return charge(amount)


def double(amount: int) -> Effect[App, PaymentError, int]:
    return pure(amount * 2)


assert_type(pay, Workflow[App, PaymentError, int, str])
assert_type(pay_by_effect, Workflow[App, PaymentError, int, str])
assert_type(pay.start(1), Effect[App, PaymentError | CheckpointError, str])
assert_type(pay.start(5, retry_failed=False), Effect[App, PaymentError | CheckpointError, str])
assert_type(pay.resume("r"), Effect[App, PaymentError | CheckpointError, str])
assert_type(pay.result("r"), Effect[HasCheckpoints, PaymentError | CheckpointError, str])
assert_type(pay.plan("r"), Effect[App, CheckpointError, ResumePlan])
assert_type(Workflow.of_steps("w", [double, double]), Workflow[App, PaymentError, int, int])

# Within a durable run, only the errors of the workflow itself remain.
assert_type(pay.call(1), Effect[App, PaymentError, str])


@workflow
def pay_twice(amount: int) -> Do[App, PaymentError, str]:
    first = yield from pay.call(amount)
    assert_type(first, str)
    try:
        return (yield from pay.call(amount))
    except PaymentError as error:
        assert_type(error, PaymentError)
        return first


def unless_late(error: PaymentError | TimedOut) -> Effect[object, PaymentError, str]:
    return pure("late") if isinstance(error, TimedOut) else fail(error)


@workflow
def pay_or_give_up(amount: int) -> Do[App, PaymentError, str]:
    """`except` does not narrow the errors of a body; `.result()` and `.or_else()` do."""
    try:
        first = yield from charge_in_time(amount).result()
        assert_type(first, Result[str, PaymentError | TimedOut])
        return (yield from charge_in_time(amount).or_else(unless_late))
    except PaymentError:
        return "declined"
    finally:
        yield from charge(0)


assert_type(pay_twice, Workflow[App, PaymentError, int, str])


# What must be rejected.
@workflow
def pay_in_time(amount: int) -> Do[App, PaymentError, str]:
    try:
        return (yield from charge_in_time(amount))  # type: ignore[misc]  # pyright: ignore[reportReturnType]
    except TimedOut:
        return "late"


step(timeout="soon")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
step(retry=3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
pay.call("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
pay.start("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
charge("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def doubled(number: int) -> Effect[object, Never, int]:
    return pure(2 * number)


assert_type(Workflow.of_steps("doubling", [doubled]), Workflow[HasCheckpoints, Never, int, int])


@workflow  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue, reportUntypedFunctionDecorator]
def without_checkpoints(name: str) -> Effect[Bare, Never, str]:
    return pure(name)
