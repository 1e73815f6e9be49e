"""What the checkers infer for effects. Never run: checked by pyright and mypy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Never, Protocol, assert_type
from uuid import UUID

from returns.result import Result

import effectflow
from effectflow import (
    Do,
    Effect,
    ask,
    attempt,
    bracket,
    do,
    effect,
    fail,
    from_blocking,
    now,
    par,
    par_traverse,
    pure,
    race,
    random,
    sleep,
    uuid,
)
from effectflow.effects import (
    Invalid,
    Valid,
    Validation,
    asks,
    die,
    from_async,
    from_fn,
    from_optional,
    from_result,
    suspend,
)


class HasCarts(Protocol):
    @property
    def carts(self) -> dict[str, int]: ...


class HasBank(Protocol):
    @property
    def bank(self) -> str: ...


class App(Protocol):
    @property
    def carts(self) -> dict[str, int]: ...

    @property
    def bank(self) -> str: ...


class Shop:
    name = "shop"


class CartError(Exception): ...


class PaymentError(Exception): ...


def load_cart(cart_id: str) -> Effect[HasCarts, CartError, int]: ...  # type: ignore[empty-body]


def charge(amount: int) -> Effect[HasBank, PaymentError, str]: ...  # type: ignore[empty-body]


async def fetch(app: App) -> bytes:
    return b""


def bank_of(env: HasBank) -> str:
    return env.bank


def parse(env: HasCarts) -> int:
    return 1


# Constructors.
assert_type(pure(1), Effect[object, Never, int])
assert_type(fail("no"), Effect[object, str, Never])
assert_type(die(ValueError()), Effect[object, Never, Never])
assert_type(from_fn(bank_of), Effect[HasBank, Never, str])
assert_type(from_async(fetch), Effect[App, Never, bytes])
assert_type(from_blocking(bank_of), Effect[HasBank, Never, str])
assert_type(attempt(parse, KeyError), Effect[HasCarts, KeyError, int])
assert_type(attempt(parse, KeyError, OSError), Effect[HasCarts, KeyError | OSError, int])
assert_type(attempt(fetch, OSError), Effect[App, OSError, bytes])
assert_type(
    attempt(fetch, KeyError, OSError, EOFError), Effect[App, KeyError | OSError | EOFError, bytes]
)
assert_type(ask(Shop), Effect[Shop, Never, Shop])
needed: Effect[App, Never, App] = ask()
assert_type(asks(bank_of), Effect[HasBank, Never, str])
assert_type(sleep(1), Effect[object, Never, None])
assert_type(now(), Effect[object, Never, datetime])
assert_type(random(), Effect[object, Never, float])
assert_type(uuid(), Effect[object, Never, UUID])

AnyOfEight = (
    KeyError
    | OSError
    | EOFError
    | ValueError
    | TypeError
    | ArithmeticError
    | BufferError
    | MemoryError
)
assert_type(
    attempt(
        fetch,
        KeyError,
        OSError,
        EOFError,
        ValueError,
        TypeError,
        ArithmeticError,
        BufferError,
        MemoryError,
    ),
    Effect[App, AnyOfEight, bytes],
)
assert_type(
    attempt(parse, KeyError, OSError, EOFError, ValueError),
    Effect[HasCarts, KeyError | OSError | EOFError | ValueError, int],
)
attempt(parse, 5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]


def make() -> Effect[HasCarts, CartError, int]:
    return load_cart("c")


def some_result() -> Result[int, str]: ...  # type: ignore[empty-body]


assert_type(suspend(make), Effect[HasCarts, CartError, int])
assert_type(from_result(some_result()), Effect[object, str, int])


def some_optional() -> int | None: ...


assert_type(from_optional(some_optional(), "none"), Effect[object, str, int])

# Combinators.
cart = load_cart("c")


def show(n: int) -> str:
    return str(n)


def wrap(error: CartError) -> PaymentError:
    return PaymentError()


def check(n: int) -> Effect[HasCarts, ValueError, str]: ...  # type: ignore[empty-body]


def recover(error: CartError) -> Effect[HasCarts, OSError, bytes]: ...  # type: ignore[empty-body]


def carts_of(app: App) -> HasCarts:
    return app


assert_type(cart.map(show), Effect[HasCarts, CartError, str])
assert_type(cart.map_err(wrap), Effect[HasCarts, PaymentError, int])
assert_type(cart.and_then(check), Effect[HasCarts, CartError | ValueError, str])
assert_type(cart.or_else(recover), Effect[HasCarts, OSError, int | bytes])
assert_type(cart.tap(check), Effect[HasCarts, CartError | ValueError, int])
assert_type(cart.tap_err(recover), Effect[HasCarts, CartError | OSError, int])
assert_type(cart.result(), Effect[HasCarts, Never, Result[int, CartError]])
assert_type(cart.local(carts_of), Effect[App, CartError, int])
assert_type(cart.on_exit(pure(None)), Effect[HasCarts, CartError, int])
assert_type(par_traverse(["a"], load_cart, limit=2), Effect[HasCarts, CartError, list[int]])


def given(app: App, items: AsyncIterator[str]) -> None:
    assert_type(cart.provide(app), Effect[object, CartError, int])
    assert_type(cart.run_sync(app), Result[int, CartError])
    assert_type(cart.run_sync(app, backend="trio"), Result[int, CartError])
    assert_type(par_traverse(items, load_cart), Effect[HasCarts, CartError, list[int]])


async def run(app: App) -> None:
    assert_type(await cart.run(app), Result[int, CartError])
    assert_type(await cart.run_or_raise(app), int)
    assert_type(cart.run_sync_or_raise(app, backend="trio"), int)
    assert_type(await cart, int)


# Functions as effects.
@effect
async def lookup(env: HasCarts, cart_id: str) -> int:
    return env.carts[cart_id]


@effect
def count(env: HasCarts) -> int:
    return len(env.carts)


@effect(errors=KeyError)
async def careful(env: HasCarts, cart_id: str) -> int:
    return env.carts[cart_id]


@effect(errors=(KeyError, OSError))
def careful_twice(env: HasCarts, cart_id: str) -> int:
    return env.carts[cart_id]


@effect(
    errors=(
        KeyError,
        OSError,
        EOFError,
        ValueError,
        TypeError,
        ArithmeticError,
        BufferError,
        MemoryError,
    )
)
def careful_eight_times(env: HasCarts, cart_id: str) -> int:
    return env.carts[cart_id]


assert_type(lookup("c"), Effect[HasCarts, Never, int])
assert_type(careful_eight_times("c"), Effect[HasCarts, AnyOfEight, int])
assert_type(count(), Effect[HasCarts, Never, int])
assert_type(careful("c"), Effect[HasCarts, KeyError, int])
assert_type(careful_twice("c"), Effect[HasCarts, KeyError | OSError, int])


# Generator notation joins effects that need different protocols.
@do
def checkout(cart_id: str) -> Do[App, CartError | PaymentError, str]:
    amount = yield from load_cart(cart_id)
    assert_type(amount, int)
    receipt = yield from charge(amount)
    assert_type(receipt, str)
    seen = yield from load_cart(cart_id).result()
    assert_type(seen, Result[int, CartError])
    return receipt


assert_type(checkout("c"), Effect[App, CartError | PaymentError, str])


# Operators need one environment: `within` gives it to effects that need different protocols.
@dataclass(frozen=True)
class Production:
    carts: dict[str, int]
    bank: str


def release(cart: object) -> Effect[HasBank, Never, None]: ...  # type: ignore[empty-body]


assert_type(load_cart("c").within(App), Effect[App, CartError, int])
assert_type(load_cart("c").within(Production), Effect[Production, CartError, int])
assert_type(pure(1).within(App), Effect[App, Never, int])
assert_type(
    par(load_cart("c").within(Production), charge(1).within(Production)),
    Effect[Production, CartError | PaymentError, tuple[int, str]],
)


@do
def in_one_environment(cart_id: str) -> Do[App, CartError | PaymentError, str]:
    both = yield from par(load_cart(cart_id).within(App), charge(1).within(App))
    assert_type(both, tuple[int, str])
    pair = yield from load_cart(cart_id).within(App).zip(charge(1).within(App))
    assert_type(pair, tuple[int, str])
    first = yield from race(load_cart("c").within(App).map(show), charge(1).within(App))
    assert_type(first, str)
    return (
        yield from bracket(
            load_cart(cart_id).within(App),
            lambda cart: release(cart).within(App),
            lambda amount: charge(amount).within(App),
        )
    )


# What must be rejected.
effect(errors=int)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportCallIssue]
load_cart("c").and_then(charge)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# mypy infers the environment `Never`, and rejects the run.
joined = par(load_cart("c"), charge(1))  # pyright: ignore[reportCallIssue, reportArgumentType, reportUnknownVariableType]
load_cart("c").within(Shop)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
load_cart("c").within(HasBank)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@do
def undeclared_error(cart_id: str) -> Do[App, CartError, str]:
    amount = yield from load_cart(cart_id)
    return (yield from charge(amount))  # type: ignore[misc]  # pyright: ignore[reportReturnType]


@do
def unmet_environment(cart_id: str) -> Do[HasCarts, CartError | PaymentError, str]:
    amount = yield from load_cart(cart_id)
    return (yield from charge(amount))  # type: ignore[misc]  # pyright: ignore[reportReturnType]


@do
def wrong_value(cart_id: str) -> Do[App, CartError, str]:
    amount = yield from load_cart(cart_id)
    return amount  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


def wrong_environment(bank: HasBank) -> None:
    joined.run_sync(bank)  # type: ignore[arg-type]  # pyright: ignore[reportUnknownMemberType]
    cart.run_sync(bank)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    cart.run_sync(None, backend="curio")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# A lambda that takes the value of a check apart, whichever class the check is.
@dataclass(frozen=True)
class Size:
    width: int
    height: int


def size(
    width: Valid[int] | Invalid[str], height: Valid[int] | Invalid[str]
) -> Valid[Size] | Invalid[str]:
    return Validation.all(width, height).map(lambda sides: Size(*sides))


def unknown_name() -> None:
    assert effectflow.no_such_name  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
