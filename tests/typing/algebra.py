"""What the checkers infer for the combinators. Never run: checked by pyright and mypy."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import IO, Never, assert_never, assert_type

from returns.result import Result

from effectflow import (
    Do,
    Effect,
    EmptyRace,
    RetryExhausted,
    RetryPolicy,
    TimedOut,
    bracket,
    do,
    fail,
    par,
    par_all,
    par_traverse,
    pure,
    race,
)
from effectflow.effects import (
    Invalid,
    TracedError,
    Valid,
    Validation,
    acquiring,
    catch,
    emit,
    first_success,
    par_try_all,
    partition,
    traverse,
    using,
)


class App:
    name = "app"


class CartError(Exception): ...


class PaymentError(Exception): ...


class Refused(PaymentError): ...


def load() -> Effect[App, CartError, int]: ...  # type: ignore[empty-body]


def charge(amount: int) -> Effect[App, PaymentError, str]: ...  # type: ignore[empty-body]


def either() -> Effect[App, CartError | PaymentError, int]: ...  # type: ignore[empty-body]


async def send(event: object) -> bool: ...  # type: ignore[empty-body]


def close(resource: object) -> Effect[App, Never, None]: ...  # type: ignore[empty-body]


assert_type(load().zip(charge(1)), Effect[App, CartError | PaymentError, tuple[int, str]])
assert_type(
    load().zip_with(charge(1), lambda n, s: [s] * n),
    Effect[App, CartError | PaymentError, list[str]],
)
assert_type(load().ensure(lambda n: n > 0, "empty"), Effect[App, CartError | str, int])
assert_type(
    load().zip(charge(1), either()), Effect[App, CartError | PaymentError, tuple[int, str, int]]
)
assert_type(
    load().zip(charge(1), load(), load(), either()),
    Effect[App, CartError | PaymentError, tuple[int, str, int, int, int]],
)
assert_type(
    load().zip(load(), load(), load(), load(), load(), load(), charge(1)),
    Effect[App, CartError | PaymentError, tuple[int, int, int, int, int, int, int, str]],
)
assert_type(load().zip(*[load()]), Effect[App, CartError, tuple[int, ...]])
assert_type(
    load().ensure_with(lambda n: n > 0, lambda n: [n]), Effect[App, CartError | list[int], int]
)
assert_type(load().fallback("none"), Effect[App, Never, int | str])
assert_type(load().fallback_to(charge(1)), Effect[App, PaymentError, int | str])
assert_type(load().context("loading").named("load"), Effect[App, CartError, int])
assert_type(load().traced(), Effect[App, TracedError[CartError], int])
assert_type(load().timeout(1.0), Effect[App, CartError | TimedOut, int])

assert_type(
    load().recover(CartError, lambda _: charge(1)), Effect[App, CartError | PaymentError, int | str]
)


assert_type(
    either().recover((CartError, PaymentError), lambda _: charge(1)),
    Effect[App, CartError | PaymentError, int | str],
)


def of_either(error: CartError | PaymentError) -> Effect[App, ValueError, bytes]: ...  # type: ignore[empty-body]


def of_cart(error: CartError) -> Effect[App, ValueError, bytes]: ...  # type: ignore[empty-body]


def of_three(error: CartError | PaymentError | OSError) -> Effect[App, ValueError, bytes]:
    return of_either(CartError())


def is_grave(error: CartError | PaymentError) -> bool: ...  # type: ignore[empty-body]


assert_type(
    either().recover((CartError, PaymentError), of_either),
    Effect[App, CartError | PaymentError | ValueError, int | bytes],
)
assert_type(
    either().recover((CartError, PaymentError, OSError), of_three),
    Effect[App, CartError | PaymentError | ValueError, int | bytes],
)
assert_type(
    either().recover(is_grave, of_either),
    Effect[App, CartError | PaymentError | ValueError, int | bytes],
)
assert_type(
    load().recover(lambda error: not error.args, of_cart),
    Effect[App, CartError | ValueError, int | bytes],
)
EIGHT = (CartError, PaymentError, OSError, EOFError, KeyError, ValueError, TypeError, BufferError)


def of_eight(
    error: CartError
    | PaymentError
    | OSError
    | EOFError
    | KeyError
    | ValueError
    | TypeError
    | BufferError,
) -> Effect[App, ValueError, bytes]:
    return of_either(CartError())


assert_type(
    either().recover(EIGHT, of_eight),
    Effect[App, CartError | PaymentError | ValueError, int | bytes],
)
either().recover((*EIGHT[:7], ArithmeticError), of_eight)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
either().recover((CartError, PaymentError), of_cart)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
either().recover(is_grave, of_cart)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]


# An error that `or_else` tells from the others and handles is gone from the type.
def without_cart_errors(error: CartError | PaymentError) -> Effect[App, PaymentError, int]:
    match error:
        case CartError():
            return pure(0)
        case PaymentError():
            return fail(error)


assert_type(either().or_else(without_cart_errors), Effect[App, PaymentError, int])

# So is one that `catch` turns into a value.
assert_type(catch(CartError)(either()), Effect[App, PaymentError, Result[int, CartError]])
assert_type(catch(CartError)(load()), Effect[App, Never, Result[int, CartError]])
assert_type(
    catch(CartError, PaymentError)(either().timeout(1)),
    Effect[App, TimedOut, Result[int, CartError | PaymentError]],
)
assert_type(
    catch(TimedOut, CartError, PaymentError)(either().timeout(1)),
    Effect[App, Never, Result[int, TimedOut | CartError | PaymentError]],
)
# Of two others, mypy keeps only what they have in common, unless it is told.
two_others: Effect[App, CartError | PaymentError, Result[int, TimedOut]] = catch(TimedOut)(
    either().timeout(1)
)


@do
def in_time() -> Do[App, CartError, int]:
    found = yield from catch(TimedOut)(load().timeout(1))
    assert_type(found, Result[int, TimedOut])
    return found.value_or(0)


@do
def declared_for_nothing() -> Do[App, CartError, int]:
    try:
        return (yield from load().timeout(1))  # type: ignore[misc]  # pyright: ignore[reportReturnType]
    except TimedOut:
        return 0


catch("no class")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]

policy = RetryPolicy.constant(1.0).with_max_retries(3)
assert_type(load().retry(policy), Effect[App, RetryExhausted[CartError], int])
assert_type(
    load().retry(policy, retryable=lambda error: bool(error.args)),
    Effect[App, CartError | RetryExhausted[CartError], int],
)

assert_type(par(load(), charge(1)), Effect[App, CartError | PaymentError, tuple[int, str]])
assert_type(
    par(load(), charge(1), load(), load(), load(), load(), load(), charge(2)),
    Effect[App, CartError | PaymentError, tuple[int, str, int, int, int, int, int, str]],
)
assert_type(par_all([load(), load()]), Effect[App, list[CartError], list[int]])
assert_type(par_try_all([load(), load()], limit=2), Effect[App, CartError, list[int]])
assert_type(traverse([1, 2], charge), Effect[App, PaymentError, list[str]])
assert_type(race([load(), load()]), Effect[App, CartError | EmptyRace, int])
assert_type(race(load(), charge(1)), Effect[App, CartError | PaymentError, int | str])
assert_type(
    race(load(), charge(1), pure(None)), Effect[App, CartError | PaymentError, int | str | None]
)
assert_type(race(load()), Effect[App, CartError, int])
assert_type(
    race(load(), load(), load(), load(), load(), load(), pure(None), charge(1)),
    Effect[App, CartError | PaymentError, int | str | None],
)
assert_type(first_success([load(), load()]), Effect[App, list[CartError], int])


def results() -> list[Result[int, CartError]]: ...  # type: ignore[empty-body]


assert_type(
    par_traverse(["a"], lambda _: load().result()), Effect[App, Never, list[Result[int, CartError]]]
)
assert_type(partition(results()), tuple[list[int], list[CartError]])
assert_type(
    partition(dict(zip(["a"], results(), strict=True))), tuple[dict[str, int], dict[str, CartError]]
)

assert_type(bracket(load(), close, charge), Effect[App, CartError | PaymentError, str])
assert_type(
    acquiring(load(), close).and_(charge(1), close).use(lambda number, text: pure((number, text))),
    Effect[App, CartError | PaymentError, tuple[int, str]],
)


@asynccontextmanager
async def connected(app: App) -> AsyncGenerator[int]:
    yield 1


@contextmanager
def logged(app: App) -> Generator[str]:
    yield ""


def opened(app: App) -> IO[str]: ...  # type: ignore[empty-body]


def both_used(number: int, text: str) -> Effect[App, PaymentError, bytes]: ...  # type: ignore[empty-body]


def three_used(number: int, text: str, other: int) -> Effect[App, PaymentError, bytes]: ...  # type: ignore[empty-body]


assert_type(using(connected).use(charge), Effect[App, PaymentError, str])
assert_type(using(opened).use(lambda file: pure(file)), Effect[App, Never, IO[str]])
assert_type(using(connected).and_(using(logged)).use(both_used), Effect[App, PaymentError, bytes])
assert_type(
    acquiring(load(), close).and_(acquiring(charge(1), close)).use(both_used),
    Effect[App, CartError | PaymentError, bytes],
)
two_more = acquiring(charge(1), close).and_(using(connected))
assert_type(
    using(connected).and_(two_more).use(three_used),
    Effect[App, PaymentError, bytes],
)
using(connected).and_(using(logged)).use(charge)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

assert_type(load().collecting(), Effect[App, CartError, tuple[int, list[object]]])
assert_type(load().into_sink(print), Effect[App, CartError, int])
assert_type(load().into_sink(send), Effect[App, CartError, int])
assert_type(load().into_sink(close), Effect[App, CartError, int])
load().into_sink(charge)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
assert_type(emit("done"), Effect[object, Never, None])


def positive(n: int) -> Valid[int] | Invalid[str]:
    return Valid(n) if n > 0 else Invalid.one("not positive")


def named(name: str) -> Valid[str] | Invalid[CartError]:
    return Valid(name)


def less_precise(n: int) -> Validation[str, int]:
    return positive(n)


def shown(errors: tuple[str, ...]) -> bytes: ...  # type: ignore[empty-body]


# `Valid | Invalid` is closed, for what is written and for what the functions return.
def told(validation: Valid[int] | Invalid[str]) -> str:
    match validation:
        case Valid(value):
            assert_type(value, int)
            return "valid"
        case Invalid(errors):
            assert_type(errors, tuple[str, ...])
            return "invalid"
        case _:
            assert_never(validation)


def told_of_all() -> int:
    match Validation.all(positive(1), named("a")):
        case Valid((number, name)):
            assert_type(name, str)
            return number
        case Invalid(errors):
            assert_type(errors, tuple[str | CartError, ...])
            return len(errors)


assert_type(
    Validation.all(positive(1), named("a"), positive(2)),
    Valid[tuple[int, str, int]] | Invalid[str | CartError],
)
assert_type(Validation.all(*[positive(1), less_precise(2)]), Valid[tuple[int, ...]] | Invalid[str])
assert_type(Validation.traverse([1, 2], positive), Valid[list[int]] | Invalid[str])
assert_type(positive(1).map(str), Valid[str] | Invalid[str])
assert_type(positive(1).map(lambda n: [n]), Valid[list[int]] | Invalid[str])
assert_type(positive(1).map_err(len), Valid[int] | Invalid[int])
assert_type(positive(1).and_then(positive), Valid[int] | Invalid[str])
assert_type(positive(1).fold(str, shown), str | bytes)
positive(1).fold(lambda number: number + 1, lambda errors: len(errors))
assert_type(positive(1).unwrap_or(None), int | None)
assert_type(less_precise(1).map(str), Valid[str] | Invalid[str])
assert_type(less_precise(1).to_effect(), Effect[object, tuple[str, ...], int])
assert_type(less_precise(1).to_result(), Result[int, tuple[str, ...]])
assert_type(Validation.from_result(less_precise(1).to_result()), Valid[int] | Invalid[str])
assert_type(Validation.from_effect(load()), Effect[App, Never, Valid[int] | Invalid[CartError]])
assert_type(
    Validation.from_effect(less_precise(1).to_effect()),
    Effect[object, Never, Valid[int] | Invalid[str]],
)
assert_type(Invalid.one("no name"), Invalid[str])
assert_type(Invalid(["a", "b"]), Invalid[str])
assert_type(Invalid.from_fields({"name": [CartError()]}), Invalid[tuple[str, CartError]])
assert_type(Invalid.from_fields({"name": [CartError()]}).to_fields(), dict[str, list[CartError]])


# What must be rejected.
wrong: Effect[App, Never, int] = load()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
pair: Effect[App, CartError, tuple[int, int]] = par(load(), charge(1))  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]
incomplete = load().ensure(lambda _: True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue, reportUnknownVariableType]
