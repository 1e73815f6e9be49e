"""`@transaction`: steps that change tables of the user in the transaction that records their end."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Never, ParamSpec, Protocol, TypeVar, overload

from effectflow.checkpoint.step import Step
from effectflow.effects import RetryPolicy, nodes
from effectflow.effects.arguments import (
    add_hint,
    call_of,
    effectful_decorator,
    is_async,
    mark_as_effectful,
    was_rejected,
)
from effectflow.effects.functions import checked_errors
from effectflow.effects.nodes import describe_call
from effectflow.effects.trails import TypedFailure
from effectflow.effects.type_variables import X1, X2, X3, X4, X5, X6, X7, X8, ErrorClasses

A = TypeVar("A")
C = TypeVar("C")
P = ParamSpec("P")
X = TypeVar("X", bound=Exception)


class TransactionCall:
    """The function of a transaction, with all of its arguments except the connection.

    Attributes:
        has_begun: whether it was called; the store may have failed before.
    """

    __slots__ = ("_args", "_errors", "_function", "_kwargs", "has_begun")

    def __init__(
        self,
        function: Callable[..., Any],
        errors: tuple[type[Exception], ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._function = function
        self._errors = errors
        self._args = args
        self._kwargs = kwargs
        self.has_begun = False

    def __call__(self, connection: Any) -> Any:
        self.has_begun = True
        try:
            return self._function(connection, *self._args, **self._kwargs)
        except TypeError as error:
            if was_rejected(error, self._function, (connection, *self._args), self._kwargs):
                call = call_of(self._function, skip=1)
                add_hint(error, f"Write {call}: the connection is passed for you")
            raise

    def failed(self, error: Exception) -> TypedFailure:
        """Return an error as a failure, if the step declares it. Otherwise, raise it: a defect."""
        if isinstance(error, self._errors):
            return TypedFailure(error)
        raise error

    def __repr__(self) -> str:
        return describe_call(self._function, self._args, self._kwargs)


class TransactionDecorator(Protocol[X]):
    """The result of `@transaction(...)`, before it receives the function."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[C, P], Coroutine[Any, Any, A]], /
    ) -> Step[P, object, X, A]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[C, P], A], /) -> Step[P, object, X, A]: ...


@overload
def transaction(
    function: Callable[Concatenate[C, P], Coroutine[Any, Any, A]], /
) -> Step[P, object, Never, A]: ...
@overload
def transaction(function: Callable[Concatenate[C, P], A], /) -> Step[P, object, Never, A]: ...
@overload
def transaction(
    *, name: str | None = None, was: str | tuple[str, ...] = ()
) -> TransactionDecorator[Never]: ...
@overload
def transaction(
    *,
    errors: ErrorClasses[X1, X2, X3, X4, X5, X6, X7, X8],
    name: str | None = None,
    was: str | tuple[str, ...] = (),
    retry: RetryPolicy | None = None,
    retryable: bool | Callable[[Any], bool] | None = None,
) -> TransactionDecorator[X1 | X2 | X3 | X4 | X5 | X6 | X7 | X8]: ...
@overload
def transaction(
    *,
    errors: tuple[type[X], ...],
    name: str | None = None,
    was: str | tuple[str, ...] = (),
    retry: RetryPolicy | None = None,
    retryable: bool | Callable[[Any], bool] | None = None,
) -> TransactionDecorator[X]: ...
def transaction(
    function: Callable[..., Any] | None = None,
    /,
    *,
    errors: Any = (),
    name: str | None = None,
    was: str | tuple[str, ...] = (),
    retry: RetryPolicy | None = None,
    retryable: bool | Callable[[Any], bool] | None = None,
) -> Any:
    """Make a function that changes your own tables a durable step that happens exactly once.

    The first parameter of the function is a connection to the database of the store. What it does with
    the connection, and the entry that the step has completed, are committed in one transaction: a crash
    anywhere leaves both or neither. If the function raises, all of it is rolled back, and the failure is
    recorded as that of any step.

    With `SqliteStore`, it is a plain function of a `sqlite3.Connection`, and runs in a thread. No other
    run of the file saves anything meanwhile, so it must be short. With `PostgresStore`, it is an async
    function of a `psycopg.AsyncConnection`. Another store, or the other kind of function, ends that life
    of the run with StoreUnavailable before the step begins.

    What it cannot do:

    - The function must not commit or roll back, and keep neither the connection nor a cursor. On SQLite
      these raise `sqlite3.DatabaseError`, as do changes of the tables of the store. Savepoints are fine.
    - It cannot run effects or steps. What it does to anything but the connection is not undone.
    - It is not cancelled once it has begun: a timeout or a stop of the run takes effect after it. So it
      has no `timeout=`. The server ends a statement after the `statement_timeout` of the store.
    - The transactions of one run happen one after the other, also in `par`.
    - What is checked at the commit, such as deferred constraints, is a failure of the function, too.
    - If PostgreSQL ends the transaction because of another one (a deadlock, a serialization failure), or
      the connection is lost, the function is called again, up to twelve times.

    Parameters:
        errors: the class of the exceptions that are failures of the function, or a tuple of classes. Any
            other one is a defect.
        name, was, retry, retryable: as those of `@step`.

    Example:
        >>> import sqlite3
        >>> from effectflow import transaction
        >>> @transaction
        ... def reserve(connection: sqlite3.Connection, seat: str, guest: str) -> int:
        ...     row = connection.execute("INSERT INTO seats VALUES (?, ?)", (seat, guest))
        ...     return row.rowcount
        >>> reserve
        <Step 'reserve'>
    """
    declared = checked_errors("@transaction", errors)

    def decorate(function: Callable[..., Any]) -> Step[..., Any, Any, Any]:
        signature = _checked_signature(function)

        @wraps(function)
        def make(*args: Any, **kwargs: Any) -> nodes.AnyEffect:
            return nodes.Pure(TransactionCall(function, declared, args, kwargs))

        described: Any = make
        described.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])
        described.declared_errors = declared
        mark_as_effectful(make, "transaction")
        return Step(
            make,
            name=name,
            was=was,
            retryable=retryable,
            retry=retry,
            connection="async" if is_async(function) else "plain",
        )

    return decorate if function is None else decorate(function)


def _checked_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function. Raise TypeError for one that cannot be a transaction."""
    name = getattr(function, "__qualname__", None) or repr(function)
    if effectful_decorator(function) is not None:
        raise TypeError(
            f"@transaction takes a function that acts on a connection, and {name} returns an effect"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"@transaction takes a plain or an async function, and {name} is a generator function: it "
            "cannot run effects"
        )
    signature = inspect.signature(function)
    first = next(iter(signature.parameters), None)
    if first in (None, "self", "cls"):
        raise TypeError(
            f"@transaction passes the connection as the first parameter, and {name} has none for it"
        )
    return signature
