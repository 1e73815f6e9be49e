"""What all parallel operators do: run branches side by side, until one decides or all have ended."""

from __future__ import annotations

from collections import deque
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
from typing import Any, Protocol

from anyio.lowlevel import checkpoint

from effectflow.effects import nodes
from effectflow.effects.arguments import check_items
from effectflow.effects.child_tasks import Children, ImmediateChildren
from effectflow.effects.effect import Effect
from effectflow.effects.errors import Halt
from effectflow.effects.event_loop import (
    Waiter,
    in_context,
    is_cancellation,
    new_waiter,
    shielded,
    stray_cancellation,
)
from effectflow.effects.fiber import PLAIN, Fiber
from effectflow.effects.interpreter import interpret
from effectflow.effects.scope import Operator, Scope
from effectflow.effects.trails import TypedFailure, log_hidden

_ITEMS_IN_A_TURN = 256

_NO_MORE: Any = object()


class Source:
    """Items that each run of an effect reads. If they can be read only once, only one run may do so."""

    def __init__(self, name: str, items: Any) -> None:
        check_items(name, items)
        self._name = name
        self._items = items
        self._is_read_once = isinstance(items, Iterator | AsyncIterator)
        self._is_spent = False

    def items(self) -> Any:
        """Return the items. Raise TypeError if they have been read and cannot be read again."""
        if self._is_read_once:
            if self._is_spent:
                raise TypeError(
                    f"the items of {self._name} can be read only once, and this effect is run again: "
                    "pass a list, or another iterable that can be read many times"
                )
            self._is_spent = True
        return self._items


class Ends(Protocol):
    """How the branches of an operator have ended, and what the operator makes of that.

    Attributes:
        has_outcome: whether an end has decided the outcome of the operator, so that defects of branches
            that end later are only logged.
    """

    @property
    def has_outcome(self) -> bool: ...

    def take(self, position: int, outcome: object) -> bool:
        """Take a value or a `TypedFailure`. Return whether it decides, which cancels the others."""
        ...


class Fork(Operator):
    """One run of a parallel operator.

    Attributes:
        owner: the owner of the items, for error messages.
        ends: decides.
        follow: receives the position and the value of a branch that has succeeded, and the fiber of the
            branch, in which it may run more; None if nothing follows.
        is_over: whether no further branch begins.
        is_read: whether all items were read.
        running: how many tasks run branches.
    """

    __slots__ = (
        "children",
        "ends",
        "env",
        "f",
        "follow",
        "is_over",
        "is_read",
        "items",
        "key",
        "keys",
        "owner",
        "running",
        "unread",
        "vacancy",
    )

    def __init__(
        self,
        outer: Scope,
        name: str,
        items: Iterable[Any] | AsyncIterable[Any],
        f: Callable[[Any], Effect[Any, Any, Any]],
        env: Any,
        ends: Ends,
        *,
        owner: str | None = None,
        key: Callable[[Any], object] | None = None,
        limit: int | None = None,
        follow: Callable[[int, Any, Fiber], Awaitable[object]] | None = None,
        is_immediate: bool = False,
    ) -> None:
        """Create an operator that has not begun.

        Parameters:
            outer: the scope of the operator.
            name: its name in paths.
            items: read lazily.
            f: creates the effect of one item.
            key: names an item's branch in a durable run; its position if None.
            is_immediate: whether all branches are known to end without waiting.
        """
        super().__init__(outer, name, limit=limit)
        self.owner = owner or f"one {name}"
        self.items = items
        self.total = len(items) if isinstance(items, Sized) else None
        self.f = f
        self.env = env
        self.ends = ends
        self.key = key
        self.follow = follow
        self.is_over = False
        self.is_read = False
        self.running = 0
        self.keys: set[str] = set()
        self.unread: Any = iter(())
        self.vacancy: Waiter | None = None
        self.children = (ImmediateChildren if is_immediate else Children)(self.inside)

    async def run(self) -> None:
        """Run all branches to their end. Raise the first defect, with the others as notes."""
        items: Any
        if isinstance(self.items, AsyncIterable):
            start, items = self._start_async, aiter(self.items)
        else:
            start, items = self._start, iter(self.items)
        self.unread = items
        try:
            async with self.children:
                try:
                    await start(items)
                except BaseException as raised:
                    self._stop_for_items(raised)
            self.outer.fiber.joins(self)
            # A loser that a stop leaves to the resume has not been cleaned up.
            is_left = any(isinstance(defect, Halt) for defect in self.children.defects)
            if is_left and self.outer.is_shielded:
                # In a finalizer, bugs of other branches come again in the resume. An exit does not.
                self.children.defects.sort(key=lambda one: isinstance(one, Exception))
            is_bad = not self.ends.has_outcome and (self.children.defects or not self.is_over)
            if is_left or is_bad:
                await self.children.raise_bad_end(self)
        finally:
            # Let a generator clean up now, even if it was not read to its end.
            if isinstance(items, AsyncGenerator):
                await shielded(items.aclose())
            elif isinstance(items, Generator):
                items.close()

    def check_count(self, count: int) -> None:
        """Raise RuntimeError unless as many items came back as were read."""
        if count != self.read:
            raise RuntimeError(
                f"{self.owner} read {self.read} items, and {count} came back: children were lost, "
                "which is a bug of effectflow or of the event loop"
            )

    @property
    def awaits_place(self) -> bool:
        return self.vacancy is not None

    def begin_more(self) -> bool:
        if self.is_over:
            return False
        if self.vacancy is not None:
            self._offer_vacancy()
            return True
        if self.is_read or isinstance(self.items, AsyncIterable):
            return False
        self._add_worker()
        return True

    # Items that are read at once.

    async def _start(self, items: Iterator[Any]) -> None:
        if isinstance(self.items, Sized):
            count = len(self.items)
        elif self.limit is None:
            listed = list(items)
            count, self.unread = len(listed), iter(listed)
        else:
            count = self.limit
        for _ in range(count if self.limit is None else min(count, self.limit)):
            self._add_worker()

    def _add_worker(self) -> None:
        self.running += 1
        self.children.start(self._work_through)

    async def _work_through(self, fiber: Fiber) -> None:
        """Run branches one after another."""
        f, env, scope, key = self.f, self.env, self.inside, self.key
        take, follow, unread = self.ends.take, self.follow, self.unread
        is_plain = fiber is PLAIN and key is None
        is_nested = len(scope.operators) > 1
        child: Any
        outcome: object
        try:
            while not self.is_over:
                try:
                    item = next(unread)
                except StopIteration:
                    self.is_read = True
                    return
                except BaseException as raised:
                    self._stop_for_items(raised, fiber)
                    return
                position = self.read
                self.read = position + 1
                if is_plain:
                    # Like `_run_branch`, whose calls would double the cost of an item.
                    try:
                        child = f(item)
                        if child.__class__ is nodes.Pure:
                            outcome = child.value
                        else:
                            if is_nested:
                                await self._check_outer()
                            outcome = await in_context(copy_context(), interpret(child, env, scope))
                        if not self.is_over and take(position, outcome):
                            self._stop(fiber, has_failed=outcome.__class__ is TypedFailure)
                        elif follow is not None and outcome.__class__ is not TypedFailure:
                            await follow(position, outcome, fiber)
                    except BaseException as raised:
                        self._stop_for(raised, fiber)
                else:
                    await self._run_branch(fiber, position, item)
                    if self.limit is not None and self.running > self.limit:
                        # A replay has begun more workers than the limit allows.
                        return
                if (position + 1) % _ITEMS_IN_A_TURN == 0:
                    # Children that never wait must not block other tasks.
                    await checkpoint()
        finally:
            self.running -= 1

    # Items that are awaited.

    async def _start_async(self, items: AsyncIterator[Any]) -> None:
        """Read the items in the task of the operator, and begin a branch for each one."""
        fiber = self.outer.fiber
        waiting: deque[tuple[int, Any]] = deque()
        while not self.is_over:
            if self._is_full():
                self.vacancy = new_waiter()
                await fiber.rest(self.inside, self.vacancy)
                if self.is_over:
                    break
            item = await fiber.wait(self.inside, _next_of, items)
            if item is _NO_MORE or self.is_over:
                break
            self.running += 1
            waiting.append((self.read, item))
            self.children.start(self._run_first, waiting)
            self.read += 1
        self.is_read = True

    async def _run_first(self, fiber: Fiber, waiting: deque[tuple[int, Any]]) -> None:
        # Trio starts tasks in any order; the first of them runs the first item.
        position, item = waiting.popleft()
        try:
            if not self.is_over:
                await self._run_branch(fiber, position, item)
        finally:
            self.running -= 1
            if self.is_over or not self._is_full():
                self._offer_vacancy()

    def _is_full(self) -> bool:
        return self.limit is not None and self.running >= self.limit

    def _offer_vacancy(self) -> None:
        vacancy, self.vacancy = self.vacancy, None
        if vacancy is not None:
            self.outer.fiber.wake(vacancy)

    # Branches.

    async def _run_branch(self, fiber: Fiber, position: int, item: Any) -> None:
        """Run one branch, and take its end."""
        outcome: object = None
        has_failed = True
        try:
            key = self._key_of(position, item)
            await self._check_outer()
            scope = self.inside if fiber is PLAIN else self.inside.with_fiber(fiber)
            fiber.enter(self, key)
            try:
                work = interpret(self.f(item), self.env, scope)
                outcome = await in_context(copy_context(), work)
                has_failed = outcome.__class__ is TypedFailure
                if not self.is_over and self.ends.take(position, outcome):
                    self._stop(fiber, has_failed=has_failed)
            except Exception as defect:
                self._stop_for(defect, fiber)
            finally:
                fiber.leave(self, has_failed=has_failed)
            if self.follow is not None and not has_failed:
                await self.follow(position, outcome, fiber)
        except BaseException as raised:
            self._stop_for(raised, fiber)

    async def _check_outer(self) -> None:
        """Raise the cancellation if an outer operator has decided: no branch may begin after that."""
        if self.outer.cancelling_operator() is not None:
            await checkpoint()

    def _key_of(self, position: int, item: Any) -> int | str:
        if self.key is None:
            return position
        key = str(self.key(item))
        if key in self.keys:
            raise ValueError(
                f"two items of {self.owner} have the key {key!r}, so their steps cannot be "
                "distinguished: pass a key= function that returns another key for each item"
            )
        self.keys.add(key)
        return key

    # Ends.

    def stop(self, fiber: Fiber) -> None:
        """Stop because something that followed the branches in a fiber has failed."""
        self._stop(fiber, has_failed=True)

    def _stop_for(self, raised: BaseException, fiber: Fiber) -> None:
        """Stop because a branch ended in a defect. Raise what must end the task of the branch."""
        if isinstance(raised, Halt):
            # The life of the run ends, and nothing is decided.
            self.children.defects.append(raised)
            self.is_over = True
            if not self.outer.fiber.awaits_steps(self):
                self.children.cancel()
            return
        defect = raised if isinstance(raised, Exception) else stray_cancellation(raised)
        if defect is None:
            raise raised
        if self.ends.has_outcome:
            log_hidden(defect, "a loser failed after its race was decided")
            return
        self.children.defects.append(defect)
        self._stop(fiber, has_failed=True)

    def _stop_for_items(self, raised: BaseException, fiber: Fiber | None = None) -> None:
        """Stop because the items themselves raised, which no branch caused. Raise a cancellation."""
        defect = stray_cancellation(raised) or raised
        if is_cancellation(defect):
            raise defect
        if isinstance(raised, Halt):
            self._stop_for(raised, fiber or self.outer.fiber)
            return
        self.children.defects.append(defect)
        self._stop(fiber or self.outer.fiber, has_failed=True)

    def _stop(self, fiber: Fiber, *, has_failed: bool) -> None:
        self.is_over = True
        self.decide(fiber, has_failed=has_failed)
        self.children.cancel()
        self.outer.fiber.cancels()


async def _next_of(items: AsyncIterator[Any]) -> Any:
    # A StopAsyncIteration must not leave a coroutine.
    return await anext(items, _NO_MORE)
