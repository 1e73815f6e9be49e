"""Run a workflow in many orders of arrival, and find the shortest one in which it ends wrongly.

What a run waits for may arrive in any order: the end of a step, a message, a timeout. A machine shows few
of the orders, and seldom the same one twice. Here a seed chooses the order, so a race that it shows is
found again each time.

The idea: deterministic simulation (FoundationDB), and schedules with as few switches as possible (CHESS).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, suppress
from inspect import isawaitable
from typing import Any, NamedTuple, TypeVar, cast

import anyio
from returns.result import Failure, Result

from effectflow.checkpoint import CheckpointStore, HasCheckpoints, find_run
from effectflow.effects.errors import Copyable
from effectflow.effects.resources import Made, entered
from effectflow.runs import Workflow
from effectflow.stores import MemoryStore
from effectflow.testing.doubles import TestClock
from effectflow.testing.orders import (
    Choices,
    Choose,
    Explorer,
    checked_seeds,
    first_order,
    searched_orders,
    shown,
)

Env = TypeVar("Env", bound=HasCheckpoints)
E = TypeVar("E")
Input = TypeVar("Input")
Out = TypeVar("Out")

_RUN = "explore"

_LONGEST = 5.0
"""The seconds after which a run counts as one that does not end, while this process has the processor."""


class ExplorationFailed(Copyable, AssertionError):
    """A workflow ends wrongly in an order of arrivals.

    Attributes:
        seed: the seed that found it; None if it is the first order, which needs none.
        order: the shortest order found that shows it: what was taken, in words.
        result: the result of the run in that order; None if it has none.
    """

    def __init__(self, text: str, seed: int | None, order: tuple[str, ...], result: Any) -> None:
        super().__init__(text)
        self.seed = seed
        self.order = order
        self.result = result


async def explore(
    workflow: Workflow[Env, E, Input, Out],
    input: Input,
    environment: Callable[[CheckpointStore], Made[Env]],
    *,
    seeds: Iterable[int] = range(20),
    check: Callable[[Result[Out, Any], Env], object] | None = None,
) -> int:
    """Run a workflow in many orders of arrival. Return how many of the orders differ from each other.

    In the first order, each branch goes on as far as it can before the next one does. Then each seed
    chooses another order, the same one each time. Time is virtual, and passes only when nothing has
    arrived. So sleeps, timeouts and back-offs keep their order, and what is due at the same time may
    arrive in any order.

    Without `check`, the first order must end with a success, and all others with the same result. Pass
    `check` if the result contains a value of `uuid()` or `random()`, or may depend on the order.

    Parameters:
        workflow: the workflow to run.
        input: the input to start it with.
        environment: makes the environment from a store, once for each order: a function, an async
            function, or one that returns a context manager or an async one.
        seeds: the seeds of the orders. `[7]` repeats one.
        check: raises an exception if a result or the environment is wrong. It may be an async function.

    Raises ExplorationFailed, with the shortest order found, if an order ends wrongly: with another
    result, with an exception of `check` or of the run, or not within 5 seconds of real time. Pauses of
    the whole process do not count.

    Example:
        >>> import anyio
        >>> from dataclasses import dataclass
        >>> from effectflow import Checkpoints, Do, Effect, par, step, workflow
        >>> from effectflow.effects import from_fn
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
        effectflow.testing.exploration.ExplorationFailed: seed 0: <Success: 10> instead of <Success: 20>
          1. step 'par[0]/read' begins
        > 2. step 'par[1]/read' begins, before step 'par[0]/write' begins
          3. step 'par[1]/write' begins
          4. step 'par[0]/write' begins
    """
    if not isinstance(cast("object", workflow), Workflow):
        raise TypeError(f"explore takes a workflow, such as one of @workflow, not {workflow!r}")

    async def problem_of(
        result: Result[Out, Any] | None, expected: object, env: Env
    ) -> Exception | None:
        if result is None:
            return AssertionError(f"the run does not end within {_LONGEST:g} s of real time")
        if check is None:
            return _compare(result, expected)
        try:
            if isawaitable(checked := check(result, env)):
                await checked
        except Exception as raised:
            return raised
        return None

    async def run(choose: Choose, expected: object = None) -> _Ended:
        async with AsyncExitStack() as stack:
            store = MemoryStore()
            return await live(choose, expected, store, await entered(environment(store), stack))

    async def live(choose: Choose, expected: object, store: MemoryStore, env: Env) -> _Ended:
        result: Result[Out, Any] | None = None
        problem: Exception | None = None
        with Explorer(choose) as explorer:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_cancel_after, _LONGEST, tasks.cancel_scope)
                try:
                    result = await TestClock().run(workflow.start(input, run_id=_RUN), env)
                except Exception as raised:
                    problem = raised
                tasks.cancel_scope.cancel()
        if problem is None:
            if await find_run(store, _RUN) is None:
                raise ValueError(
                    "environment must use the store that it receives in its checkpoints"
                )
            problem = await problem_of(result, expected, env)
        return _Ended(tuple(explorer.order), explorer.choices, result, problem)

    search = searched_orders(checked_seeds(seeds))
    first = await run(first_order)
    if first.problem is not None:
        raise first.error(None) from first.problem
    failed: tuple[int, _Ended] | None = None
    different = {first.order}
    made: Choices | None = None
    with suppress(StopIteration):
        while True:
            seed, choose = search.send(made)
            ended = await run(choose, first.result)
            different.add(ended.order)
            made = None if ended.problem is None else ended.choices
            if ended.problem is not None:
                failed = seed, ended
    if failed is not None:
        seed, ended = failed
        raise ended.error(seed) from ended.problem
    return len(different)


async def _cancel_after(seconds: float, scope: anyio.CancelScope) -> None:
    # In small parts, because a process on a busy machine may be paused for longer than all of them.
    for _ in range(20):
        await anyio.sleep(seconds / 20)
    scope.cancel()


class _Ended(NamedTuple):
    order: tuple[str, ...]
    choices: Choices
    result: Any
    problem: Exception | None

    def error(self, seed: int | None) -> ExplorationFailed:
        """Return the error about it. `seed` has found it."""
        found_by = "in the first order" if seed is None else f"seed {seed}"
        problem = self.problem
        what = (
            str(problem) if isinstance(problem, AssertionError) else f"the run raises {problem!r}"
        )
        text = f"{found_by}: {what}\n{shown(self.order, self.choices)}"
        return ExplorationFailed(text, seed, self.order, self.result)


def _compare(result: Any, expected: object) -> AssertionError | None:
    """Return what is wrong with a result. `expected` is that of the first order, and there it is None."""
    if expected is None:
        if isinstance(result, Failure):
            return AssertionError(f"the run ends with {result!r}. If that is right, pass `check`")
    elif result != expected and repr(result) != repr(expected):
        return AssertionError(f"{result!r} instead of {expected!r}")
    return None
