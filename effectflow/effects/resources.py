"""Resources that are acquired, used, and always released.

The idea comes from Haskell's `bracket`. Here, a cancellation never interrupts an acquisition. So at no
moment does a resource exist that nothing will release.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Generic, Never, TypeAlias, TypeVar, TypeVarTuple, Unpack, cast, overload

import anyio

from effectflow.effects import nodes
from effectflow.effects.arguments import check_effects, check_function
from effectflow.effects.effect import Effect
from effectflow.effects.errors import EffectError
from effectflow.effects.event_loop import (
    is_cancellation,
    is_cancelled_by_scope,
    running_backend,
    stray_cancellation,
)
from effectflow.effects.interpreter import add_suppressed, interpret
from effectflow.effects.nodes import AnyEffect
from effectflow.effects.scope import Operator, Scope, supervised
from effectflow.effects.trails import Suppressed, TypedFailure

Env = TypeVar("Env")
E = TypeVar("E")
E2 = TypeVar("E2")
E3 = TypeVar("E3")
A = TypeVar("A")
R = TypeVar("R")
R2 = TypeVar("R2")
R3 = TypeVar("R3")
Rs = TypeVarTuple("Rs")


def bracket(
    acquire: Effect[Env, E, R],
    release: Callable[[R], Effect[Env, E2, object]],
    use: Callable[[R], Effect[Env, E3, A]],
) -> Effect[Env, E | E2 | E3, A]:
    """Acquire a resource, use it, and release it exactly once, however the use ends.

    Acquire and release are shielded from cancellation, which takes effect in between. If it arrives
    during the acquisition, the resource is released and the use does not start. Give an acquisition
    that may hang its own timeout: `acquire.timeout(5)`.

    If both the use and the release fail, the error of the use stands, and the other one is in its trail
    and notes; `traced` returns both as one value. If only the release fails, its error is the failure of
    the whole. If the release fails after a cancellation, its error is logged. It is also in the trail of
    the operator that cancelled the use if that fails, as a `timeout` does.

    In a durable run, a failure of the use stands once a release that is a step has begun: the resource is
    gone, so a resume fails with the same failure. If the run is stopped from outside, such a release is
    not run, because the resume continues to use the resource. If the run itself cancels the use, as a
    `timeout` does, the release runs. Do not put into a step what each process must acquire again.

    On asyncio, acquire and release run in separate tasks. What must be exited by the task that entered
    it, such as a task group, belongs in one `from_async` with `async with`.

    Parameters:
        acquire: yields the resource. If it fails, nothing is released.
        release: creates the effect that releases the resource.
        use: creates the effect that uses the resource.

    Example:
        >>> from effectflow import bracket, pure
        >>> from effectflow.effects import from_fn
        >>> log = []
        >>> bracket(
        ...     pure("file"),
        ...     lambda name: from_fn(lambda _: log.append(f"closed {name}")),
        ...     lambda name: pure(len(name)),
        ... ).run_sync(None), log
        (<Success: 4>, ['closed file'])
    """
    check_effects("bracket", acquire)
    check_function(release, "the release of bracket")
    check_function(use, "the use of bracket")
    return nodes.Bracket(acquire, release, use)


def acquiring(
    acquire: Effect[Env, E, R], release: Callable[[R], Effect[Env, E, object]]
) -> Acquisition[Env, E, R]:
    """Begin a list of resources that are acquired in order and released in reverse order.

    Each is acquired and released as by `bracket`, also in a durable run.

    Example:
        >>> from effectflow import pure
        >>> from effectflow.effects import acquiring, from_fn
        >>> log = []
        >>> def closing(name):
        ...     return from_fn(lambda _: log.append(name))
        >>> both = acquiring(pure("a"), closing).and_(pure("b"), closing)
        >>> both.use(lambda a, b: pure(a + b)).run_sync(None), log
        (<Success: ab>, ['b', 'a'])
    """
    check_effects("acquiring", acquire)
    check_function(release, "the release of acquiring")
    return Acquisition(((acquire, release),))


def using(
    f: Callable[
        [Env], AbstractAsyncContextManager[R, bool | None] | AbstractContextManager[R, bool | None]
    ],
) -> Acquisition[Env, Never, R]:
    """Begin a list of resources with the context manager `f(env)`, async or plain.

    It is entered and left in the task that uses the resource, as by `async with`. So locks, task groups
    and context variables work. It is left exactly once, however the use ends. Timeouts, lost races and
    other cancellations by operators do not interrupt its exit, which `finalizer_deadline` can limit.

    The exit receives the exception with which the use ended, so a transaction is rolled back after a
    failure, too: the error itself, or an `EffectError` around one that is not an exception. It cannot
    suppress the exception. If both the use and the exit fail, the error of the use stands, and the other
    one is in its trail and notes. What `f`, entering or leaving raises otherwise is a defect.

    In a durable run, each process enters it again. A plan enters it only with `effects=True`.

    Parameters:
        f: makes a new context manager from the environment, each time that the effect is run.

    Example:
        >>> from contextlib import contextmanager
        >>> from effectflow import pure
        >>> from effectflow.effects import using
        >>> @contextmanager
        ... def opened(env: object):
        ...     print("open")
        ...     yield "file"
        ...     print("close")
        >>> using(opened).use(lambda name: pure(len(name))).run_sync(None)
        open
        close
        <Success: 4>
    """
    check_function(f, "using", "pass a function that returns the context manager itself")
    return Acquisition(((f,),))


@dataclass(frozen=True, slots=True)
class Acquisition(Generic[Env, E, *Rs]):
    """Resources to acquire, in order. Created by `acquiring` and `using`.

    Attributes:
        parts: for each one, the effect that acquires it and the function that releases it, or only the
            function that makes its context manager.
    """

    parts: tuple[tuple[Any, ...], ...]

    @overload
    def and_(self, another: Acquisition[Env, E2, R], /) -> Acquisition[Env, E | E2, *Rs, R]: ...
    @overload
    def and_(
        self, another: Acquisition[Env, E2, R, R2], /
    ) -> Acquisition[Env, E | E2, *Rs, R, R2]: ...
    @overload
    def and_(
        self, another: Acquisition[Env, E2, R, R2, R3], /
    ) -> Acquisition[Env, E | E2, *Rs, R, R2, R3]: ...
    @overload
    def and_(
        self, acquire: Effect[Env, E2, R], release: Callable[[R], Effect[Env, E2, object]]
    ) -> Acquisition[Env, E | E2, *Rs, R]: ...
    def and_(self, acquire: Any, release: Any = None) -> Acquisition[Any, Any, *tuple[Any, ...]]:
        """Add resources that are acquired after these, and released before them.

        Pass an effect and its release, as to `acquiring`, or another list of up to three resources.

        Example:
            >>> from effectflow import pure
            >>> from effectflow.effects import acquiring
            >>> def closing(name):
            ...     return pure(print("close", name))
            >>> both = acquiring(pure("a"), closing).and_(acquiring(pure("b"), closing))
            >>> both.use(lambda a, b: pure(a + b)).run_sync(None)
            close b
            close a
            <Success: ab>
        """
        if release is None and acquire.__class__ is Acquisition:
            return Acquisition((*self.parts, *acquire.parts))
        check_effects("and_", acquire)
        check_function(release, "the release of and_")
        return Acquisition((*self.parts, (acquire, release)))

    def use(self, f: Callable[[Unpack[Rs]], Effect[Env, E2, A]]) -> Effect[Env, E | E2, A]:
        """Run `f(*resources)` with all resources acquired.

        If one cannot be acquired, the ones before it are released. Every release runs, even if another
        one fails.
        """
        check_function(f, "use")

        def nested(held: tuple[Any, ...]) -> AnyEffect:
            if len(held) == len(self.parts):
                return cast("Callable[..., AnyEffect]", f)(*held)
            part = self.parts[len(held)]
            if len(part) == 1:
                return _managed(part[0], lambda resource: nested((*held, resource)))
            acquire, release = part
            return bracket(acquire, release, lambda resource: nested((*held, resource)))

        return nodes.Suspend(lambda _env, _scope: nested(()), (".use", self, f))

    def __repr__(self) -> str:
        first, *others = [
            ("using" if len(part) == 1 else "acquiring", nodes.show_arguments(part))
            for part in self.parts
        ]
        joined = [
            f".and_({name}{arguments})" if name == "using" else f".and_{arguments}"
            for name, arguments in others
        ]
        return "".join((*first, *joined))


def _managed(f: Callable[[Any], Any], use: Callable[[Any], AnyEffect]) -> AnyEffect:
    """Return the use of the resource of one context manager."""

    @supervised
    async def perform(env: Any, scope: Scope) -> Any:
        if scope.is_planned:
            await scope.fiber.park(scope, f"{f!r} would be entered")
        manager = f(env)
        outcome: Any = None
        raised: BaseException | None = None
        passing: BaseException | None = None
        deadline = scope.finalizer_deadline
        hidden: Exception | None = TimeoutError(f"it took more than {deadline} s and was cancelled")
        try:
            # Around the manager: scopes must nest, and a manager may open its own.
            with anyio.CancelScope() as guard:
                resource = await scope.fiber.wait(scope, _enter, manager, f)
                try:
                    inside = scope.under(_Managing(scope, guard))
                    outcome = await interpret(use(resource), env, inside)
                except BaseException as ended:
                    raised = ended
                guard.shield = True
                if deadline is not None:
                    guard.deadline = anyio.current_time() + deadline
                passing = _raised_by(outcome) if raised is None else raised
                try:
                    hidden = await scope.fiber.wait(scope.shielded(), _leave, manager, passing)
                except BaseException as ended:
                    # On asyncio, a scope that is shielded late would propagate it.
                    if not (guard.cancel_called and is_cancellation(ended)):
                        raise
            cause: Operator | None = None
            if raised is not None and is_cancellation(raised):
                if _is_over(raised):
                    raise hidden or RuntimeError(
                        f"the context manager of {f!r} cancelled the use and suppressed that, so the use "
                        "has no value: limit it with .timeout(seconds)"
                    )
                cause = scope.cause()
            return _end(outcome, raised, hidden, cause)
        finally:
            # Its traceback keeps this frame.
            del raised, hidden, passing

    return nodes.Perform(perform, ("using", f))


class _Managing(Operator):
    """The use of a context manager, which may cancel it by its own scope, as a task group does."""

    __slots__ = ("guard",)

    def __init__(self, outer: Scope, guard: anyio.CancelScope) -> None:
        super().__init__(outer, "using")
        self.guard = guard

    def is_cancelled_within(self) -> bool:
        self.guard.shield = True
        try:
            return is_cancelled_by_scope()
        finally:
            self.guard.shield = False


Made: TypeAlias = (
    Env | Awaitable[Env] | AbstractContextManager[Env] | AbstractAsyncContextManager[Env]
)
"""What a parameter `environment` returns: an environment, an awaitable or a context manager of one."""


async def entered(made: Made[Any], stack: AsyncExitStack) -> Any:
    """Return the environment that a parameter `environment` has made.

    An awaitable is awaited, and a context manager, async or plain, is entered, for the stack to leave.
    """
    if isawaitable(made):
        made = await made
    if isinstance(made, AbstractAsyncContextManager):
        return await stack.enter_async_context(cast("AbstractAsyncContextManager[Any]", made))
    if isinstance(made, AbstractContextManager):
        return stack.enter_context(cast("AbstractContextManager[Any]", made))
    return made


async def _enter(manager: Any, f: Callable[[Any], Any]) -> Any:
    if isinstance(manager, AbstractAsyncContextManager):
        return await cast("AbstractAsyncContextManager[Any]", manager).__aenter__()
    if isinstance(manager, AbstractContextManager):
        return cast("AbstractContextManager[Any]", manager).__enter__()
    raise TypeError(f"using needs a context manager, and {f!r} returned {manager!r}")


async def _leave(manager: Any, raised: BaseException | None) -> Exception | None:
    """Leave a context manager. Return the exception that this raises, other than the one it receives."""
    details = (None, None, None) if raised is None else (type(raised), raised, raised.__traceback__)
    try:
        if isinstance(manager, AbstractAsyncContextManager):
            await manager.__aexit__(*details)
        else:
            manager.__exit__(*details)
    except BaseException as defect:
        if defect is raised:
            return None
        if isinstance(defect, Exception):
            return defect
        raise
    return None


def _is_over(cancelled: BaseException) -> bool:
    """Return whether a cancellation of the use came from its context manager, and ended with it."""
    if running_backend() == "trio":
        return not is_cancelled_by_scope()
    return stray_cancellation(cancelled) is not None


def _raised_by(outcome: Any) -> Exception | None:
    """Return the exception of a failure, for a context manager; None for a value."""
    if outcome.__class__ is not TypedFailure:
        return None
    return outcome.error if isinstance(outcome.error, Exception) else EffectError(outcome.error)


def _end(
    outcome: Any, raised: BaseException | None, hidden: Exception | None, cause: Operator | None
) -> Any:
    """Return or raise the end of a use. It stands even if leaving the context manager failed."""
    if hidden is not None:
        if raised is None and outcome.__class__ is not TypedFailure:
            raise hidden
        ended = outcome if raised is None else raised
        suppressed = Suppressed(hidden, is_defect=True)
        outcome = add_suppressed("a context manager", suppressed, ended, cause)
    if raised is not None:
        raise raised
    return outcome
