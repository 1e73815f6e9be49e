"""Run a workflow in many orders of arrival, and find the shortest one in which it ends wrongly.

What a run waits for may arrive in any order: the end of a step, a message, a timeout. A machine shows few
of the orders, and seldom the same one twice. Here a seed chooses the order, so a race that it shows is
found again each time.

The idea: deterministic simulation (FoundationDB), and schedules with as few switches as possible (CHESS).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Generic, TypeVar

import anyio
from returns.result import Failure, Result

from effectflow.checkpoint import CheckpointStore, HasCheckpoints
from effectflow.effects.errors import Copyable
from effectflow.effects.event_loop import PerEventLoop
from effectflow.testing.doubles import TestClock
from effectflow.testing.orders import (
    Choices,
    Choose,
    Explorer,
    Taken,
    TakesTurns,
    by_choices,
    by_seed,
    checked_seeds,
    shown,
    shrinking,
)
from effectflow.workflows import Workflow

Env = TypeVar("Env", bound=HasCheckpoints)
E = TypeVar("E")
Input = TypeVar("Input")
Out = TypeVar("Out")

_RUN = "explore"

_SECONDS_TO_SHRINK = 20.0


@dataclass(frozen=True, slots=True)
class Exploration:
    """What `explore` has tried without finding anything.

    Attributes:
        orders: how many orders the workflow was run in, with the first one.
        distinct: how many of them differ from each other. 1 means that there was nothing to choose.
    """

    orders: int
    distinct: int


class ExplorationFailed(Copyable, AssertionError):
    """A workflow ends wrongly in an order of arrivals.

    Attributes:
        seed: the seed that found it; None if that is the first order, which needs none.
        order: the shortest order that was found to show it.
        result: the result of the run in that order; None if it raised an exception.
    """

    def __init__(
        self,
        problem: str,
        *,
        seed: int | None = None,
        order: Sequence[Taken] = (),
        result: Any = None,
    ) -> None:
        found_by = "" if seed is None else f"seed {seed}: "
        super().__init__(f"{found_by}{problem}\n{shown(order)}")
        self.seed = seed
        self.order = tuple(order)
        self.result = result


async def explore(
    workflow: Workflow[Env, E, Input, Out],
    input: Input,
    make_env: Callable[[CheckpointStore], Env],
    *,
    seeds: Iterable[int] = range(20),
    check: Callable[[Result[Out, Any], Env], object] | None = None,
    patience: float = 5.0,
) -> Exploration:
    """Run a workflow in many orders of arrival, and check that it ends well in each of them.

    In the first order, each branch goes on as far as it can before the next one does. Then each seed
    chooses another order, the same one each time. Time is virtual, and passes only when nothing has
    arrived, so sleeps, timeouts and back-offs keep their order; what is due at the same time may arrive
    in any order.

    Without `check`, every order must end with the result of the first one. If a result contains a value
    of `uuid()` or `random()`, or may depend on the order, pass a `check`.

    Parameters:
        workflow: the workflow to run.
        input: the input to start it with.
        make_env: creates an environment around a store, once for each order.
        seeds: the seeds of the orders. `[7]` repeats one.
        check: raises AssertionError if a result is wrong, or what the environment has noted. It may be an
            async function.
        patience: the real seconds to wait for a thread, and for a run in which nothing happens.

    Raises ExplorationFailed, with the shortest order found, if an order ends wrongly: with another
    result, with an AssertionError of `check`, with a defect, or not at all.

    Example:
        >>> import anyio
        >>> from dataclasses import dataclass, field
        >>> from effectflow import Checkpoints, Do, Effect, from_fn, par, step, workflow
        >>> @dataclass
        ... class Account:
        ...     checkpoints: Checkpoints
        ...     balance: int = 0
        >>> @step
        ... def read() -> Effect[Account, None, int]:
        ...     return from_fn(lambda account: account.balance)
        >>> @step
        ... def write(balance: int) -> Effect[Account, None, None]:
        ...     return from_fn(lambda account: setattr(account, "balance", balance))
        >>> def pay_in(amount: int) -> Effect[Account, None, None]:
        ...     return read().and_then(lambda balance: write(balance + amount))
        >>> @workflow
        ... def pay_in_twice(amount: int) -> Do[Account, None, int]:
        ...     yield from par(pay_in(amount), pay_in(amount))
        ...     return (yield from read())
        >>> def account(store):
        ...     return Account(Checkpoints(store))
        >>> anyio.run(explore, pay_in_twice, 10, account)
        Traceback (most recent call last):
        effectflow.testing.exploration.ExplorationFailed: seed 1: <Success: 10> instead of <Success: 20>
          1. step 'par[0]/read' begins
        > 2. step 'par[1]/read' begins, before step 'par[0]/write' begins
          3. step 'par[0]/write' begins
          4. step 'par[1]/write' begins
    """
    _check_workflow(workflow)
    chosen = checked_seeds(seeds)
    orders = _Orders(workflow, input, make_env, check, patience)
    async with _one_at_a_time.get():
        first = await orders.run(lambda _turn, _arrivals: 0)
        if first.problem is not None:
            raise first.error(
                "in the first order already, in which each branch goes on as far as it can: "
            )
        orders.expected = first.result
        different = {first.order}
        for seed in chosen:
            found = await orders.run(by_seed(seed))
            if found.problem is not None:
                raise await orders.shortest(seed, found)
            different.add(found.order)
        return Exploration(len(chosen) + 1, len(different))


def _check_workflow(workflow: object) -> None:
    if not isinstance(workflow, Workflow):
        raise TypeError(f"explore takes a workflow, such as one of @workflow, not {workflow!r}")


_one_at_a_time = PerEventLoop(anyio.Lock)
"""An exploration replaces functions of the library, so no two go on at the same time."""


@dataclass(frozen=True)
class _Ended:
    """How a run has ended in an order. `problem` is what is wrong with that; None if nothing is."""

    order: tuple[Taken, ...]
    choices: Choices
    result: Any
    problem: Exception | None = None

    def error(self, prefix: str, seed: int | None = None) -> ExplorationFailed:
        """Return the error to raise about it."""
        problem = self.problem
        text = (
            str(problem) if isinstance(problem, AssertionError) else f"the run raises {problem!r}"
        )
        error = ExplorationFailed(
            f"{prefix}{text}", seed=seed, order=self.order, result=self.result
        )
        if problem is not None and problem.__traceback__ is not None:
            error.__cause__ = problem
        return error


@dataclass
class _Orders(Generic[Env, E, Input, Out]):
    """The orders of a workflow. The attributes are the parameters of `explore`.

    Attributes:
        expected: the result with which each order must end; None if `check` decides.
    """

    workflow: Workflow[Env, E, Input, Out]
    input: Input
    make_env: Callable[[CheckpointStore], Env]
    check: Callable[[Result[Out, Any], Env], object] | None
    patience: float
    expected: object = None

    async def run(self, choose: Choose) -> _Ended:
        """Run the workflow in an order."""
        store = TakesTurns()
        env = self.make_env(store)
        result: Any = None
        problem: Exception | None = None
        with Explorer(choose, patience=self.patience, is_whole=True) as explorer:
            try:
                effect = self.workflow.start(self.input, run_id=_RUN)
                result = await TestClock().run(effect, env)
            except Exception as defect:
                problem = defect
        if problem is None:
            if not store.was_used:
                raise ValueError(
                    "explore needs an environment around the store that it passes to make_env, because "
                    "each order needs an empty one"
                )
            problem = await self._problem(result, env)
        return _Ended(tuple(explorer.order), explorer.choices, result, problem)

    async def _problem(self, result: Any, env: Env) -> Exception | None:
        if self.check is not None:
            try:
                checked = self.check(result, env)
                if isawaitable(checked):
                    await checked
            except Exception as problem:
                return problem
        elif self.expected is None and isinstance(result, Failure):
            return AssertionError(f"the run ends with {result!r}. If that is right, pass `check`")
        elif self.expected is not None and not _are_same(result, self.expected):
            return AssertionError(f"{result!r} instead of {self.expected!r}")
        return None

    async def shortest(self, seed: int, found: _Ended) -> ExplorationFailed:
        """Return the error about the shortest order that shows a problem."""
        until = time.monotonic() + _SECONDS_TO_SHRINK
        again = await self.run(by_choices(found.choices))
        search, made = shrinking(found.choices), None
        with suppress(StopIteration):
            while again.problem is not None and time.monotonic() < until:
                ended = await self.run(by_choices(search.send(made)))
                made = None if ended.problem is None else ended.choices
                found = found if ended.problem is None else ended
        if again.problem is None or not found.choices:
            return found.error(
                "the same order ends differently when it is run again, so the workflow depends on "
                "something else, such as uuid(), random() or real time. If that is right, pass `check`. ",
                seed,
            )
        return found.error("", seed)


def _are_same(result: object, other: object) -> bool:
    return result == other or repr(result) == repr(other)
