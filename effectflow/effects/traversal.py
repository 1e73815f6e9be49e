"""The engine of the parallel operators: so many workers, one stream of items, values in order."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sized,
)
from contextvars import copy_context
from functools import partial
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from effectflow.effects import nodes
from effectflow.effects.effect import Effect
from effectflow.effects.errors import Halt
from effectflow.effects.event_loop import in_context, is_being_cancelled, shielded
from effectflow.effects.interpreter import interpret
from effectflow.effects.scope import Operator, Scope, child_path

__all__ = ["Source", "Traversal", "check_limit"]

_ITEMS_IN_A_TURN = 256


def check_limit(limit: int | None, name: str = "limit") -> None:
    """Refuse a limit under which nothing would ever run."""
    if limit is not None and limit < 1:
        raise ValueError(f"{name} must be 1 or more, not {limit}")


class Source:
    """Items to be read by each run of an effect; those that can be read only once, by one run."""

    def __init__(self, name: str, items: Any) -> None:
        self._name = name
        self._items = items
        self._is_read_once = isinstance(items, Iterator | AsyncIterator)
        self._is_spent = False

    def items(self) -> Any:
        """The items. Raises TypeError if they have been read and cannot be read again."""
        if self._is_read_once:
            if self._is_spent:
                raise TypeError(
                    f"the items of {self._name} can be read only once, and this effect is run again: "
                    "give it a list, or another iterable that begins anew each time"
                )
            self._is_spent = True
        return self._items


class Traversal:
    """One run of a parallel operator.

    Parameters:
        owner: whose items they are, as errors are to say it.
        path: the operator's place in a durable run.
        items: what to read, lazily.
        f: makes the effect of one item.
        key: names an item's flow within a durable run; its position does if None.
        stop_early: whether the first failure ends the rest. A defect always does.
        only: the positions of the items to run, or the path of the one flow to run; the others are
            passed by. All of them if None.
        take: is given each value and its position, in place of keeping them.
    """

    def __init__(
        self,
        owner: str,
        path: str,
        items: Iterable[Any] | AsyncIterable[Any],
        f: Callable[[Any], Effect[Any, Any, Any]],
        env: Any,
        scope: Scope,
        *,
        key: Callable[[Any], object] | None = None,
        stop_early: bool = True,
        only: range | str | None = None,
        take: Callable[[int, Any], Awaitable[object]] | None = None,
    ) -> None:
        self.owner = owner
        self.items = items
        self.f = f
        self.env = env
        self.operator = Operator(lambda: self.has_cancelled)
        self.scope = scope.under(self.operator)
        self.key = key
        self.stop_early = stop_early
        self.only = only
        self.take = take
        self.path = path
        self.keys: dict[str, int] = {}
        self.values: dict[int, Any] = {}
        self.failures: list[tuple[range, nodes.Failed]] = []
        self.raised: list[BaseException] = []
        self.is_over = False
        self.has_cancelled = False
        self.read = 0
        self.tasks = anyio.create_task_group()

    async def run(
        self, limit: int | None, *, if_stopped: Callable[[], object] | None = None
    ) -> None:
        """Run it to its end. Raises the first defect, with the others as notes.

        `if_stopped` is called if the run is stopped after finalizers of what a failure has cancelled ran
        steps: the resume has to come to that failure again, and not to what was cancelled.
        """
        try:
            await self._run_items(limit)
        except anyio.get_cancelled_exc_class():
            if if_stopped is not None and self.operator.is_final:
                if_stopped()
            raise

    async def _run_items(self, limit: int | None) -> None:
        # Whether or not a generator was read to its end, it is to clean up now, and not some time.
        if isinstance(self.items, AsyncIterable):
            items = aiter(self.items)
            try:
                await self._run(partial(self._start_async, items, limit))
            finally:
                if isinstance(items, AsyncGenerator):
                    await shielded(items.aclose())
        else:
            iterator = iter(self.items)
            try:
                await self._run(partial(self._start_sync, iterator, limit))
            finally:
                if isinstance(iterator, Generator):
                    iterator.close()

    async def _run(self, start: Callable[[], Awaitable[None]]) -> None:
        async with self.tasks:
            try:
                await start()
            except Exception as defect:
                self._stop_for(defect)
        if self.raised:
            first, *others = self.raised
            for other in others:
                first.add_note(f"and at the same time another child raised {other!r}")
            raise first

    def values_in_order(self) -> list[Any]:
        return [self.values[position] for position in range(len(self.values))]

    def failures_in_order(self) -> list[nodes.Failed]:
        return [failed for _, failed in sorted(self.failures, key=lambda pair: pair[0].start)]

    def first_failure(self) -> tuple[range, nodes.Failed] | None:
        """The failure that came first in time, and the positions of the items that led to it."""
        return self.failures[0] if self.failures else None

    def place_of(self, position: int) -> int | str:
        """How a resumed run finds an item again: by the path of its flow if it has a key."""
        if self.key is None:
            return position
        return next(child_path(self.path, key) for key, at in self.keys.items() if at == position)

    def fail(self, positions: range, failed: nodes.Failed) -> None:
        """Take note of a failure to which the items at these positions led."""
        self.failures.append((positions, failed))
        if self.stop_early:
            self._cancel()

    async def _start_sync(self, items: Iterator[Any], limit: int | None) -> None:
        if isinstance(self.items, Sized):
            count = len(self.items)
        elif limit is None:
            listed = list(items)
            count, items = len(listed), iter(listed)
        else:
            count = limit
        numbered = enumerate(items)
        for _ in range(count if limit is None else min(count, limit)):
            self.tasks.start_soon(self._work_through, numbered)

    async def _start_async(self, items: AsyncIterator[Any], limit: int | None) -> None:
        if limit is None:
            async for item in items:
                self.tasks.start_soon(self._run_child, self.read, item)
                self.read += 1
            return
        turn = anyio.Lock()
        for _ in range(limit):
            self.tasks.start_soon(self._work_through_async, items, turn)

    async def _work_through(self, numbered: Iterator[tuple[int, Any]]) -> None:
        # `_run_child` is written out here: the calls would double the price of an item.
        f, env, scope, values, take = self.f, self.env, self.scope, self.values, self.take
        is_plain = scope.recorder is None and self.key is None
        child: Any
        outcome: Any
        try:
            for position, item in numbered:
                self.read = position + 1
                if not is_plain:
                    outcome = await self._placed_child(position, item)
                else:
                    child = f(item)
                    if child.__class__ is nodes.Pure:
                        outcome = child.value
                    else:
                        outcome = await in_context(copy_context(), interpret(child, env, scope))
                if outcome.__class__ is nodes.Failed:
                    self.fail(range(position, position + 1), outcome)
                elif take is None:
                    values[position] = outcome
                else:
                    await take(position, outcome)
                if self.is_over:
                    return
                if position % _ITEMS_IN_A_TURN == 0:
                    # Children that never wait must not keep everybody else waiting.
                    await checkpoint()
        except (Exception, Halt) as raised:
            self._stop_for(raised)

    async def _work_through_async(self, items: AsyncIterator[Any], turn: anyio.Lock) -> None:
        while not self.is_over:
            try:
                async with turn:
                    item = await anext(items)
                    position = self.read
                    self.read += 1
            except StopAsyncIteration:
                return
            except Exception as defect:
                self._stop_for(defect)
                return
            await self._run_child(position, item)

    async def _run_child(self, position: int, item: Any) -> None:
        try:
            outcome = await self._placed_child(position, item)
            if outcome.__class__ is nodes.Failed:
                self.fail(range(position, position + 1), outcome)
            elif self.take is None:
                self.values[position] = outcome
            else:
                await self.take(position, outcome)
        except (Exception, Halt) as raised:
            self._stop_for(raised)

    async def _placed_child(self, position: int, item: Any) -> Any:
        """The outcome of a child that has a place of its own in a durable run."""
        key = position if self.key is None else str(self.key(item))
        if self._passes_by(position, key):
            return None
        scope = self._child_scope(position, key)
        return await in_context(copy_context(), interpret(self.f(item), self.env, scope))

    def _passes_by(self, position: int, key: int | str) -> bool:
        """Whether another item alone is run again: the one that led to the failure of the whole."""
        if isinstance(self.only, str):
            return child_path(self.path, key) != self.only
        return self.only is not None and position not in self.only

    def _child_scope(self, position: int, key: int | str) -> Scope:
        if isinstance(key, str):
            if key in self.keys:
                raise ValueError(
                    f"two items of {self.owner} have the key {key!r}, so their steps could not be told "
                    "apart: give key= a function that is different for each item"
                )
            self.keys[key] = position
        return self.scope.child(self.path, key)

    def _stop_for(self, raised: BaseException) -> None:
        self.raised.append(raised)
        self._cancel()

    def _cancel(self) -> None:
        self.is_over = True
        # If everything is being cancelled already, it is not this that ends the others.
        self.has_cancelled = self.has_cancelled or not is_being_cancelled()
        self.tasks.cancel_scope.cancel()
