"""What the checkers infer for bodies that await. Never run: checked by pyright and mypy."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Never, assert_type

from returns.result import Result

from effectflow import (
    CheckpointError,
    Checkpoints,
    Client,
    Do,
    Effect,
    HasCheckpoints,
    RetryPolicy,
    Signal,
    TimedOut,
    Workflow,
    ask,
    bracket,
    compensate,
    do,
    effect,
    now,
    par,
    par_all,
    par_traverse,
    race,
    saga,
    sleep,
    step,
    workflow,
)
from effectflow.checkpoint import ResumePlan, replaying
from effectflow.effects import asks
from effectflow.service import Handle


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints
    bank: str


class Declined(Exception): ...


class Closed(Exception): ...


POLICY = RetryPolicy.constant(1).with_max_retries(3)

approval = Signal("approval", bool)


# Steps.


@step
async def charge(amount: int) -> str:
    return str(amount)


@step
async def ship(item: str, *, express: bool = False) -> int:
    return len(item)


@step
async def clean() -> None: ...


@step(name="charge twice", at_most_once=True)
async def charge_twice(amount: int) -> list[str]:
    first = await charge(amount)
    assert_type(first, str)
    return [first, await charge(amount)]


@step(retry=POLICY, retryable=lambda error: isinstance(error, OSError))
async def charge_again(amount: int) -> str:
    return await charge(amount)


@step(timeout=30)
async def charge_in_time(amount: int) -> str:
    return await charge(amount)


@step(retry=POLICY, timeout=timedelta(seconds=30))
async def charge_again_in_time(amount: int) -> str:
    return await charge(amount)


@step(errors=Declined)
async def reserve(amount: int) -> str:
    return await charge(amount)


@step(errors=(Declined, Closed), name="order", at_most_once=True)
async def order(item: str) -> int:
    if not item:
        raise Declined
    return await ship(item)


@step(errors=Declined, retry=POLICY, timeout=30)
async def reserve_in_time(amount: int) -> str:
    return await reserve(amount)


@step
@effect(errors=Declined)
async def pay(app: App, amount: int) -> str:
    assert_type(await charge(amount), str)
    return app.bank


# They are effects, which fail with what they declare, and need no environment that is known.
assert_type(charge(1), Effect[object, Never, str])
assert_type(ship("cap", express=True), Effect[object, Never, int])
assert_type(clean(), Effect[object, Never, None])
assert_type(charge_twice(1), Effect[object, Never, list[str]])
assert_type(charge_again(1), Effect[object, Never, str])
assert_type(charge_in_time(1), Effect[object, TimedOut, str])
assert_type(charge_again_in_time(1), Effect[object, TimedOut, str])
assert_type(reserve(1), Effect[object, Declined, str])
assert_type(order("cap"), Effect[object, Declined | Closed, int])
assert_type(reserve_in_time(1), Effect[object, Declined | TimedOut, str])
assert_type(pay(1), Effect[App, Declined, str])
assert_type(charge(1).map(len), Effect[object, Never, int])
assert_type(charge(1).timeout(3), Effect[object, TimedOut, str])


# Effects.


@do
async def quote(item: str) -> float:
    await clean()
    return len(await charge(await ship(item))) / 2


@do
async def nothing() -> None:
    await sleep(1)


assert_type(quote("cap"), Effect[object, Never, float])
assert_type(nothing(), Effect[object, Never, None])


async def helper(amount: int) -> str:
    """A function without a decorator, which a body may await."""
    return await charge(amount)


@do
async def all_operators() -> None:
    assert_type(await charge(5), str)
    assert_type(await helper(5), str)
    assert_type(await reserve(5), str)
    assert_type(await reserve(5).result(), Result[str, Declined])
    assert_type(await pay(5), str)
    assert_type(await charge(5).timeout(5), str)
    assert_type(await charge(5).map(len), int)
    assert_type(await charge(5).retry(POLICY), str)
    assert_type(await pay(5).result(), Result[str, Declined])
    assert_type(await par(charge(5), ship("cap")), tuple[str, int])
    assert_type(await par(charge(5), ship("cap"), quote("cap")), tuple[str, int, float])
    assert_type(await par_all([charge(5), charge(6)]), list[str])
    assert_type(await par_traverse(["cap"], quote), list[float])
    assert_type(await race([charge(5), charge(6)]), str)
    assert_type(await saga(compensate(charge(5), lambda receipt: ship(receipt))), str)
    assert_type(await bracket(charge(5), lambda _: clean(), ship), int)
    assert_type(await ask(App), App)
    assert_type(await asks(bank_of), str)
    assert_type(await now(), datetime)
    assert_type(await approval.wait(), bool)
    assert_type([await charge(amount) for amount in (1, 2)], list[str])
    assert_type(replaying(), bool)


def bank_of(app: App) -> str:
    return app.bank


# Generators and coroutines may be mixed.


@do
def in_a_generator(amount: int) -> Do[App, Declined, str]:
    receipt = yield from reserve(amount)
    assert_type(receipt, str)
    price = yield from quote(receipt)
    assert_type(price, float)
    return (yield from pay(amount))


@do
async def in_a_coroutine(amount: int) -> str:
    receipt = await in_a_generator(amount)
    assert_type(receipt, str)
    return receipt


# Workflows.


@workflow
async def checkout(cart: dict[str, int]) -> list[str]:
    return [await charge(price) for price in cart.values()]


@workflow(name="check out", version="2")
async def checkout_again(cart: dict[str, int]) -> list[str]:
    receipts = await checkout.call(cart)
    assert_type(receipts, list[str])
    return receipts


@workflow
async def nightly() -> int:
    return await ship("cap")


@workflow
def in_turns() -> Do[App, Declined, str]:
    return (yield from pay(5))


assert_type(checkout, Workflow[HasCheckpoints, Never, dict[str, int], list[str]])
assert_type(checkout_again, Workflow[HasCheckpoints, Never, dict[str, int], list[str]])
assert_type(checkout.start({"cap": 5}), Effect[HasCheckpoints, CheckpointError, list[str]])
assert_type(checkout.resume("r"), Effect[HasCheckpoints, CheckpointError, list[str]])
assert_type(checkout.plan("r"), Effect[HasCheckpoints, CheckpointError, ResumePlan])
assert_type(checkout.call({"cap": 5}), Effect[HasCheckpoints, Never, list[str]])
assert_type(nightly, Workflow[HasCheckpoints, Never, None, int])
assert_type(nightly.start(), Effect[HasCheckpoints, CheckpointError, int])
assert_type(nightly.start(run_id="r"), Effect[HasCheckpoints, CheckpointError, int])
assert_type(nightly.start(None), Effect[HasCheckpoints, CheckpointError, int])
assert_type(in_turns, Workflow[App, Declined, None, str])
assert_type(in_turns.start(), Effect[App, Declined | CheckpointError, str])


async def runs(app: App, client: Client) -> None:
    assert_type(await checkout.start({"cap": 5}).run(app), Result[list[str], CheckpointError])
    assert_type(await quote("cap").run(app), Result[float, Never])
    assert_type(await quote("cap").run_or_raise(app), float)
    assert_type(await client.submit(checkout, {"cap": 5}), Handle[Never, list[str]])
    assert_type(await client.submit(nightly), Handle[Never, int])
    assert_type(await client.submit(nightly, None), Handle[Never, int])
    await client.submit(checkout)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@workflow(errors=Declined)
async def declaring(amount: int) -> str:
    return await charge(amount)


@workflow(errors=(Declined, Closed), version="2")
async def declaring_two() -> str:
    return await charge(5)


@do(errors=(Declined, Closed))
async def doing(amount: int) -> str:
    return await charge(amount)


assert_type(declaring, Workflow[HasCheckpoints, Declined, int, str])
assert_type(declaring_two, Workflow[HasCheckpoints, Declined | Closed, None, str])
assert_type(doing(5), Effect[object, Declined | Closed, str])


# What must be rejected.


@do
async def mistakes() -> None:
    await charge("5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await charge()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await ship("cap", True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await checkout.call(["cap"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await checkout({"cap": 5})  # type: ignore[operator]  # pyright: ignore[reportCallIssue]
    await par_traverse([5], quote)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    # A missing `await`.
    receipt: str = charge(5)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    receipt + charge(5)  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
    len(charge(5))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await charge(ship("cap"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    [charge(amount) + "!" for amount in (1, 2)]  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue]


@step(errors=Declined)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def without_async(amount: int) -> Do[App, Declined, str]:
    return (yield from charge(amount))


step(errors=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


@do
def with_other_failures(amount: int) -> Do[App, Closed, str]:
    return (yield from reserve(amount))  # type: ignore[misc]  # pyright: ignore[reportReturnType]


@step
async def without_await(amount: int) -> str:
    return charge(amount)  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


checkout.start(["cap"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
checkout.start()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
