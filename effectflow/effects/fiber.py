"""Fibers: the sequential lines of a program, and what a durable run may change about them.

The body of a run is a fiber, and so is each branch of a parallel operator. Operators tell their fiber
when a branch begins and ends, when they wait, and what they decide. Outside of durable runs the only
fiber is `PLAIN`, which is also the class of all fibers: its hooks just do the work, in no order, and
record nothing. So no operator asks whether it is durable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Never, TypeVar

from anyio.lowlevel import checkpoint

from effectflow.effects.coroutines import advanced
from effectflow.effects.event_loop import Waiter, run_to_the_end, wake

if TYPE_CHECKING:
    from effectflow.effects.scope import Operator, Scope

A = TypeVar("A")


class Fiber:
    """One sequential line of a program. This class itself is the fiber outside of durable runs."""

    __slots__ = ()

    @property
    def is_stopping(self) -> bool:
        """Whether the run is being stopped from outside."""
        return False

    @property
    def started_version(self) -> str | None:
        """The version of the workflow that the run was started with; None outside of runs."""
        return None

    @property
    def begins_anew(self) -> bool:
        """Whether nothing is recorded from here on, so that no earlier life has done what comes next."""
        return True

    @property
    def is_unordered(self) -> bool:
        """Whether nothing that this fiber does has to wait for its turn."""
        return True

    # What a fiber does.

    def execute(self, step: Any, env: Any, scope: Scope) -> Coroutine[Any, Any, object]:
        """Execute a step, or return its recorded outcome: its value or a `TypedFailure`.

        `step` is a `Step` of `nodes.py`.
        """
        return step.definition.execute_plainly(step, env, scope)

    async def wait(self, scope: Scope, work: Callable[..., Awaitable[A]], *arguments: Any) -> A:
        """Await `work(*arguments)`: local code, outside of steps, which a resume executes again."""
        return await work(*arguments)

    async def begin_local(self, scope: Scope, work: object) -> None:
        """Raise what ends the fiber before it begins local code."""

    def continues_freely(self) -> bool:
        """Return whether local code goes on without `run_local`, which nothing here needs. Count it."""
        return True

    async def run_local(
        self, scope: Scope, body: Coroutine[Any, Any, Any], resume: Callable[[], Any]
    ) -> tuple[Any, Any]:
        """Run a coroutine from `resume()` to the next effect it awaits. Return as `advanced` does."""
        return await advanced(body, resume)

    async def breathe(self, scope: Scope) -> None:
        """Let other tasks run."""
        await checkpoint()

    def value(
        self, name: str, kind: object, compute: Callable[[], A], *, is_tentative: bool = False
    ) -> A:
        """Compute a value once. A resume returns the recorded value. `kind` is its annotation.

        One that `is_tentative` is recorded with what comes next, and computed again if nothing does.
        """
        return compute()

    async def sleep(self, scope: Scope, seconds: float) -> None:
        """Wait. A resume waits only for the remaining time."""
        await scope.clock.sleep(seconds)

    async def sleep_until(self, scope: Scope, until: float, longest: float) -> None:
        """Wait until a time, in seconds since the epoch, at most `longest` seconds."""
        left = until - scope.clock.now().timestamp()
        await scope.clock.sleep(min(max(0.0, left), longest))

    async def park(self, scope: Scope, reason: str) -> Never:
        """End here, because a plan must not do what comes next. Only plans call this."""
        raise AssertionError(f"nothing is planned outside of durable runs: {reason}")

    async def check(self, scope: Scope, *, has_begun: bool = False) -> None:
        """Raise what ends the fiber, if anything does. Call it before something begins.

        `has_begun` says whether what comes next is no beginning, for which a worker that stops waits.
        """

    async def save_now(self, reason: str) -> None:
        """Make everything durable that the run has recorded."""

    # Operators.

    def next_path(self, name: str, was: tuple[str, ...] = ()) -> str:
        """Return the path of the next operation or operator with this name.

        If it is recorded under one of its former names, `was`, that path.
        """
        return ""

    def branch(self) -> Fiber:
        """Return the fiber of a new task, which runs one or more branches of an operator."""
        return self

    async def begin(self, scope: Scope) -> None:
        """Begin a fiber, in its own task."""

    def end(self) -> None:
        """End a fiber, in its own task, after its operator has heard of the end."""

    def enter(self, operator: Operator, key: object) -> None:
        """Begin a branch of an operator with this key."""

    def leave(self, operator: Operator, *, has_failed: bool) -> None:
        """End the branch that was entered last."""

    def unwinds(self, operator: Operator | None) -> None:
        """Note that a failure, a defect or a cancellation is about to run a finalizer.

        `operator` is the one that has cancelled the fiber, if one has.
        """

    def decides(self, operator: Operator, *, has_failed: bool) -> None:
        """Note that an end in this fiber decides the operator, which will cancel its other branches."""

    def cancels(self) -> None:
        """Note that an operator has cancelled what is within it."""

    def awaits_steps(self, operator: Operator) -> bool:
        """Return whether steps within an operator are in progress, for whose ends a stop waits."""
        return False

    def joins(self, operator: Operator) -> None:
        """Note that all branches of an operator of this fiber have ended."""

    async def rest(self, scope: Scope, waiter: Waiter, *, has_raised: bool = False) -> None:
        """Wait until another fiber wakes this one. If it has raised, its task group waits instead."""
        if not has_raised:
            await waiter

    def wake(self, waiter: Waiter) -> None:
        """Wake a fiber that rests. It runs once no other one does."""
        wake(waiter)

    def deadline(
        self, operator: Operator, seconds: float
    ) -> AbstractAsyncContextManager[object] | None:
        """Return a limit around the work within an operator, which decides when the time is up.

        None if the clock of the scope sets the limit.
        """
        return None

    # Protection from cancellation.

    async def shield(
        self, work: Coroutine[Any, Any, A], *, is_kept: bool = True
    ) -> tuple[A, BaseException | None]:
        """Run an acquisition or a finalizer, shielded from cancellation; see `run_to_the_end`.

        `is_kept` says whether a stop of the run waits for its end, too.
        """
        return await run_to_the_end(work)

    def supervise(self, work: Callable[[], Coroutine[Any, Any, A]]) -> Coroutine[Any, Any, A]:
        """Run an operator or an acquisition. A durable run notices meanwhile that it is being stopped."""
        return work()

    def stop(self) -> None:
        """Note that the run is being stopped from outside, instead of cancelled by an operator."""

    def undo_failed(self, error: object, left: Callable[[], Sequence[str]]) -> None:
        """End a durable run as failed, because an undo has failed. Elsewhere, do nothing.

        Parameters:
            error: the failure or defect of the undo.
            left: returns the names of the undos that are left, this one first.
        """


PLAIN = Fiber()
"""The fiber outside of durable runs. It records nothing."""
