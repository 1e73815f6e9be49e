"""Effects side by side, as effects: children never outlive their operator (structured concurrency)."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sized
from typing import Any, TypeVar

import anyio

from effectflow.effects import nodes
from effectflow.effects.effect import Effect
from effectflow.effects.errors import Halt
from effectflow.effects.interpreter import interpret
from effectflow.effects.scope import Scope

__all__ = ["par_traverse"]

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")
B = TypeVar("B")


def par_traverse(
    items: Iterable[A] | AsyncIterable[A],
    f: Callable[[A], Effect[Env, E, B]],
    *,
    limit: int | None = None,
    key: Callable[[A], object] | None = None,
) -> Effect[Env, E, list[B]]:
    """Runs `f(item)` for every item, side by side, and yields the values in the order of the items.

    The first failure cancels the rest, waits for their finalizers, and is the failure of the whole.
    A defect does the same and is raised as itself.

    Parameters:
        items: a sync or async iterable. It is read lazily, never further ahead than `limit`.
        f: makes the effect of one item.
        limit: how many run at once, 1 or more; as many tasks are started. None for all at once.
        key: names an item within a durable run, so that its steps are found again by a resume
            even if the items come in another order. The position is the name if not given.

    Example:
        >>> from effectflow import par_traverse, pure
        >>> par_traverse([1, 2, 3], lambda n: pure(n * n), limit=2).run_sync(None)
        <Success: [1, 4, 9]>
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be 1 or more, not {limit}")

    async def perform(env: Env, scope: Scope) -> Any:
        return await _Traversal(items, f, key, env, scope).run(limit)

    return nodes.Perform(perform)


class _Traversal:
    """One run of `par_traverse`: the items yet to read, the values so far, and the first bad end."""

    def __init__(
        self,
        items: Iterable[Any] | AsyncIterable[Any],
        f: Callable[[Any], Effect[Any, Any, Any]],
        key: Callable[[Any], object] | None,
        env: Any,
        scope: Scope,
    ) -> None:
        self.items = items
        self.f = f
        self.key = key
        self.env = env
        self.scope = scope
        self.path = scope.next_path("par_traverse")
        self.keys: set[str] = set()
        self.values: dict[int, Any] = {}
        self.failed: nodes.Failed | None = None
        self.raised: list[BaseException] = []
        self.tasks = anyio.create_task_group()

    async def run(self, limit: int | None) -> Any:
        """The values in order, or the first failure; raises the first defect."""
        async with self.tasks:
            if isinstance(self.items, AsyncIterable):
                await self._start_async(aiter(self.items), limit)
            else:
                self._start_sync(self.items, limit)
        if self.raised:
            first, *others = self.raised
            for other in others:
                first.add_note(f"and at the same time another child raised {other!r}")
            raise first
        if self.failed is not None:
            return self.failed
        return [self.values[position] for position in range(len(self.values))]

    def _start_sync(self, items: Iterable[Any], limit: int | None) -> None:
        if not isinstance(items, Sized):
            items = list(items) if limit is None else items
        count = len(items) if isinstance(items, Sized) else limit or 1
        numbered = enumerate(items)
        for _ in range(count if limit is None else min(count, limit)):
            self.tasks.start_soon(self._work_through, numbered)

    async def _start_async(self, items: AsyncIterator[Any], limit: int | None) -> None:
        if limit is None:
            position = 0
            async for item in items:
                self.tasks.start_soon(self._run_child, position, item)
                position += 1
            return
        numbered = _numbered(items)
        turn = anyio.Lock()
        for _ in range(limit):
            self.tasks.start_soon(self._work_through_async, numbered, turn)

    async def _work_through(self, numbered: Iterator[tuple[int, Any]]) -> None:
        for position, item in self._guarded(numbered):
            await self._run_child(position, item)

    def _guarded(self, numbered: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """The items, until they end or something went wrong; an error of theirs is a defect."""
        while self.failed is None and not self.raised:
            try:
                numbered_item = next(numbered)
            except StopIteration:
                return
            except Exception as defect:
                self._stop_for(defect)
                return
            yield numbered_item

    async def _work_through_async(
        self, numbered: AsyncIterator[tuple[int, Any]], turn: anyio.Lock
    ) -> None:
        while self.failed is None and not self.raised:
            try:
                async with turn:
                    position, item = await anext(numbered)
            except StopAsyncIteration:
                return
            except Exception as defect:
                self._stop_for(defect)
                return
            await self._run_child(position, item)

    async def _run_child(self, position: int, item: Any) -> None:
        try:
            scope = self._child_scope(position, item)
            outcome = await interpret(self.f(item), self.env, scope)
        except (Exception, Halt) as raised:
            self._stop_for(raised)
            return
        if outcome.__class__ is not nodes.Failed:
            self.values[position] = outcome
        elif self.failed is None:
            self.failed = outcome
            self.tasks.cancel_scope.cancel()

    def _child_scope(self, position: int, item: Any) -> Scope:
        if self.scope.recorder is None:
            return self.scope
        child = self.scope.child(self.path, position if self.key is None else self.key(item))
        if child.path in self.keys:
            raise ValueError(
                f"two items of one par_traverse have the key of {child.path!r}, so their steps "
                "could not be told apart: give key= a function that is different for each item"
            )
        self.keys.add(child.path)
        return child

    def _stop_for(self, raised: BaseException) -> None:
        self.raised.append(raised)
        self.tasks.cancel_scope.cancel()


async def _numbered(items: AsyncIterator[Any]) -> AsyncIterator[tuple[int, Any]]:
    position = 0
    async for item in items:
        yield position, item
        position += 1
