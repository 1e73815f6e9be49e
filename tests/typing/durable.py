"""What the checkers infer for durable work. Never run: checked by pyright and mypy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Never, assert_type

from effectflow import (
    CheckpointError,
    Checkpoints,
    Do,
    Effect,
    Workflow,
    effect,
    pure,
    step,
    with_checkpointing,
    workflow,
)
from effectflow.checkpoint import ResumePlan


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


assert_type(refund(1), Effect[App, PaymentError, str])
assert_type(charge(1), Effect[App, PaymentError, str])
assert_type(charge_twice(1), Effect[App, PaymentError, str])
assert_type(with_checkpointing("pay", charge(1)), Effect[App, PaymentError, str])
assert_type(charge(1).checkpointed("pay"), Effect[App, PaymentError, str])


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
assert_type(pay.resume("r"), Effect[App, PaymentError | CheckpointError, str])
assert_type(pay.plan("r"), Effect[App, CheckpointError, ResumePlan])
assert_type(Workflow.of_steps("w", [double, double]), Workflow[App, PaymentError, int, int])

# What must be refused.
pay.start("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
charge("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@workflow  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType, reportUntypedFunctionDecorator]
def without_checkpoints(name: str) -> Effect[Bare, Never, str]:
    return pure(name)
