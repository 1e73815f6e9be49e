"""Parallel operators, which are effects themselves. Children never outlive their operator."""

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
    Mapping,
    Sequence,
    Sized,
)
from contextvars import copy_context
from typing import Any, Never, TypeVar, cast, overload

import anyio
from anyio.lowlevel import checkpoint
from returns.result import Failure, Result, Success

from effectflow.effects import nodes
from effectflow.effects.arguments import check_count, check_effects, check_function, check_items
from effectflow.effects.child_tasks import Children, ImmediateChildren
from effectflow.effects.effect import Effect
from effectflow.effects.errors import Halt
from effectflow.effects.event_loop import in_context, is_cancellation, shielded, stray_cancellation
from effectflow.effects.interpreter import interpret, interpret_branch, interpret_cancelled
from effectflow.effects.paths import escaped
from effectflow.effects.scope import PLAIN, Operator, Scope, supervised
from effectflow.effects.trails import TypedFailure, joined

_ITEMS_IN_A_TURN = 256

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")
B = TypeVar("B")
K = TypeVar("K")
E1 = TypeVar("E1")
E2 = TypeVar("E2")
E3 = TypeVar("E3")
E4 = TypeVar("E4")
E5 = TypeVar("E5")
E6 = TypeVar("E6")
E7 = TypeVar("E7")
E8 = TypeVar("E8")
A1 = TypeVar("A1")
A2 = TypeVar("A2")
A3 = TypeVar("A3")
A4 = TypeVar("A4")
A5 = TypeVar("A5")
A6 = TypeVar("A6")
A7 = TypeVar("A7")
A8 = TypeVar("A8")


@overload
def par() -> Effect[object, Never, tuple[()]]: ...
@overload
def par(e1: Effect[Env, E1, A1], /) -> Effect[Env, E1, tuple[A1]]: ...
@overload
def par(
    e1: Effect[Env, E1, A1], e2: Effect[Env, E2, A2], /
) -> Effect[Env, E1 | E2, tuple[A1, A2]]: ...
@overload
def par(
    e1: Effect[Env, E1, A1], e2: Effect[Env, E2, A2], e3: Effect[Env, E3, A3], /
) -> Effect[Env, E1 | E2 | E3, tuple[A1, A2, A3]]: ...
@overload
def par(
    e1: Effect[Env, E1, A1],
    e2: Effect[Env, E2, A2],
    e3: Effect[Env, E3, A3],
    e4: Effect[Env, E4, A4],
    /,
) -> Effect[Env, E1 | E2 | E3 | E4, tuple[A1, A2, A3, A4]]: ...
@overload
def par(
    e1: Effect[Env, E1, A1],
    e2: Effect[Env, E2, A2],
    e3: Effect[Env, E3, A3],
    e4: Effect[Env, E4, A4],
    e5: Effect[Env, E5, A5],
    /,
) -> Effect[Env, E1 | E2 | E3 | E4 | E5, tuple[A1, A2, A3, A4, A5]]: ...
@overload
def par(
    e1: Effect[Env, E1, A1],
    e2: Effect[Env, E2, A2],
    e3: Effect[Env, E3, A3],
    e4: Effect[Env, E4, A4],
    e5: Effect[Env, E5, A5],
    e6: Effect[Env, E6, A6],
    /,
) -> Effect[Env, E1 | E2 | E3 | E4 | E5 | E6, tuple[A1, A2, A3, A4, A5, A6]]: ...
@overload
def par(
    e1: Effect[Env, E1, A1],
    e2: Effect[Env, E2, A2],
    e3: Effect[Env, E3, A3],
    e4: Effect[Env, E4, A4],
    e5: Effect[Env, E5, A5],
    e6: Effect[Env, E6, A6],
    e7: Effect[Env, E7, A7],
    /,
) -> Effect[Env, E1 | E2 | E3 | E4 | E5 | E6 | E7, tuple[A1, A2, A3, A4, A5, A6, A7]]: ...
@overload
def par(
    e1: Effect[Env, E1, A1],
    e2: Effect[Env, E2, A2],
    e3: Effect[Env, E3, A3],
    e4: Effect[Env, E4, A4],
    e5: Effect[Env, E5, A5],
    e6: Effect[Env, E6, A6],
    e7: Effect[Env, E7, A7],
    e8: Effect[Env, E8, A8],
    /,
) -> Effect[Env, E1 | E2 | E3 | E4 | E5 | E6 | E7 | E8, tuple[A1, A2, A3, A4, A5, A6, A7, A8]]: ...
@overload
def par(*effects: Effect[Env, E, A]) -> Effect[Env, E, tuple[A, ...]]: ...
def par(*effects: Effect[Any, Any, Any]) -> Effect[Any, Any, Any]:
    """Run the effects in parallel and yield their values as a tuple.

    The first failure cancels the others, waits for their finalizers, and is the failure of the whole. A
    defect does the same and is raised unchanged.

    Example:
        >>> from effectflow import par, pure
        >>> par(pure(1), pure("a")).run_sync(None)
        <Success: (1, 'a')>
    """
    check_effects("par", *effects)
    return _parallel("par", effects, nodes.itself, gather=tuple)


def par_try_all(
    effects: Iterable[Effect[Env, E, A]] | AsyncIterable[Effect[Env, E, A]],
    *,
    limit: int | None = None,
) -> Effect[Env, E, list[A]]:
    """Run the effects in parallel and yield their values in the order of the effects.

    The first failure cancels the others. See `par_traverse`, with the effects as its items.
    """
    return _parallel("par_try_all", effects, nodes.itself, limit=limit)


def par_all(
    effects: Iterable[Effect[Env, E, A]] | AsyncIterable[Effect[Env, E, A]],
    *,
    limit: int | None = None,
) -> Effect[Env, list[E], list[A]]:
    """Run all effects to their end in parallel, and yield their values in order.

    If any fail, it fails with every error, in the order of the effects. A defect cancels the others and
    is raised unchanged.

    Parameters:
        effects: a sync or async iterable. It is read lazily, never further ahead than `limit`.
        limit: the number of effects that run at the same time, at least 1. None for all.

    Example:
        >>> from effectflow import fail, par_all, pure
        >>> par_all([pure(1), fail("a"), fail("b")]).run_sync(None)
        <Failure: ['a', 'b']>
    """
    return _parallel("par_all", effects, nodes.itself, limit=limit, stop_early=False)


def par_traverse(
    items: Iterable[A] | AsyncIterable[A],
    f: Callable[[A], Effect[Env, E, B]],
    *,
    limit: int | None = None,
    key: Callable[[A], object] | None = None,
) -> Effect[Env, E, list[B]]:
    """Run `f(item)` for every item in parallel, and yield the values in the order of the items.

    The first failure cancels the others, waits for their finalizers, and is the failure of the whole. A
    defect does the same and is raised unchanged.

    Parameters:
        items: a sync or async iterable. It is read lazily, never further ahead than `limit`. If it can
            be read only once, the effect can be run only once. A generator is always closed at the end.
        f: creates the effect of one item.
        limit: the number of items that run at the same time, at least 1; as many tasks are started. None
            for all.
        key: names an item within a durable run, so that a resume finds its steps even if the items are
            in another order. The position of the item by default.

    Example:
        >>> from effectflow import par_traverse, pure
        >>> par_traverse([1, 2, 3], lambda n: pure(n * n), limit=2).run_sync(None)
        <Success: [1, 4, 9]>
    """
    check_item_functions("par_traverse", f, key)
    return _parallel("par_traverse", items, f, key=key, limit=limit)


def traverse(items: Iterable[A], f: Callable[[A], Effect[Env, E, B]]) -> Effect[Env, E, list[B]]:
    """Run `f(item)` for every item, one after another, and yield the values.

    The first failure ends it, and no further item is read.
    """
    check_function(f, "traverse")
    source = Source("traverse", items)

    def traverse(items: Iterable[A], f: Callable[[A], Effect[Env, E, B]]) -> Any:
        values: list[Any] = []
        for item in source.items():
            values += [(yield f(item))]
        return values

    return nodes.FromGenerator(traverse, (items, f))


@overload
def partition(results: Mapping[K, Result[A, E]]) -> tuple[dict[K, A], dict[K, E]]: ...
@overload
def partition(results: Iterable[Result[A, E]]) -> tuple[list[A], list[E]]: ...
def partition(
    results: Mapping[Any, Result[Any, Any]] | Iterable[Result[Any, Any]],
) -> tuple[Any, Any]:
    """Return the values and the errors of many results: as two lists, or as two dicts by key.

    With `result()`, a parallel operator runs every item to its end and yields what each item gave.

    Parameters:
        results: an iterable of results, or a mapping to results, such as one by item.

    Example:
        >>> from effectflow import attempt, par_traverse, partition
        >>> def parse(text: str):
        ...     return attempt(lambda _: int(text), ValueError).map_err(lambda _: "not a number")
        >>> texts = ["1", "x", "3"]
        >>> results = par_traverse(texts, lambda text: parse(text).result()).run_sync_or_raise(None)
        >>> partition(results)
        ([1, 3], ['not a number'])
        >>> partition(dict(zip(texts, results)))
        ({'1': 1, '3': 3}, {'x': 'not a number'})
    """
    if not isinstance(results, Mapping):
        values, errors = partition(dict(enumerate(results)))
        return [*values.values()], [*errors.values()]
    by_key = cast("Mapping[Any, Result[Any, Any]]", results).items()
    return (
        {key: result.unwrap() for key, result in by_key if isinstance(result, Success)},
        {key: result.failure() for key, result in by_key if isinstance(result, Failure)},
    )


def _parallel(
    name: str,
    items: Iterable[Any] | AsyncIterable[Any],
    f: Callable[[Any], Effect[Any, Any, Any]],
    *,
    key: Callable[[Any], object] | None = None,
    limit: int | None = None,
    stop_early: bool = True,
    gather: Callable[[list[Any]], Any] = list,
) -> Effect[Any, Any, Any]:
    check_limit(limit)
    shown = (items,) if f is nodes.itself else (items, f)
    depth = None
    if f is nodes.itself and isinstance(items, list | tuple):
        # A copy: the depth is that of these effects, and the caller may change the list.
        items = tuple(cast("Sequence[Any]", items))
        depth = nodes.immediate_depth(items)
    source = Source(name, items)

    @supervised
    async def perform(env: Any, scope: Scope) -> Any:
        operator = Operator.begin(scope, name)
        traversal = Traversal(
            f"one {name}",
            operator,
            source.items(),
            f,
            env,
            key=key,
            stop_early=stop_early,
            children=Children(scope.flow.stop) if depth is None else ImmediateChildren(),
        )
        try:
            await traversal.run(limit)
            if not operator.is_decided:
                operator.branches.check_complete()
        finally:
            operator.end()
        if stop_early and traversal.first_failure is not None:
            return traversal.first_failure
        if operator.decision is not None:
            raise operator.branches.nothing_failed()
        traversal.check_count(len(traversal.values) + len(traversal.failures))
        if traversal.failures:
            return joined(traversal.failures_in_order())
        return gather(traversal.values_in_order())

    return nodes.Perform(perform, (name, *shown, nodes.Options(limit=limit, key=key)), depth)


def check_limit(limit: int | None) -> None:
    """Raise ValueError unless a limit is None or a positive int."""
    if limit is not None:
        check_count("limit", limit, least=1)


def check_item_functions(
    operator: str, f: Callable[[Any], object], key: Callable[[Any], object] | None
) -> None:
    """Raise TypeError if one of the functions of items is not a plain function."""
    check_function(f, operator)
    if key is not None:
        check_function(key, f"key of {operator}", "compute the key without awaiting")


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


class Traversal:
    """One run of a parallel operator.

    Parameters:
        owner: the owner of the items, for error messages.
        operator: decides on the first failure, and names the branches.
        items: read lazily.
        f: creates the effect of one item.
        key: names an item's branch in a durable run; its position if None.
        stop_early: whether the first failure cancels the others. A defect always does.
        take: receives the position and value of each item. Values are kept if None.
        records_positions: whether a decision records the range of positions of the items that led to
            it, instead of the key of one item.
        children: runs the children.
    """

    def __init__(
        self,
        owner: str,
        operator: Operator,
        items: Iterable[Any] | AsyncIterable[Any],
        f: Callable[[Any], Effect[Any, Any, Any]],
        env: Any,
        *,
        key: Callable[[Any], object] | None = None,
        stop_early: bool = True,
        take: Callable[[int, Any], Awaitable[object]] | None = None,
        records_positions: bool = False,
        children: Children,
    ) -> None:
        self.owner = owner
        self.operator = operator
        self.items = items
        self.f = f
        self.env = env
        self.key = key
        self.stop_early = stop_early
        self.take = take
        self.records_positions = records_positions
        self.keys: set[str] = set()
        self.values: dict[int, Any] = {}
        self.failures: list[tuple[range, TypedFailure]] = []
        self.is_over = False
        self.read = 0
        self.unread: Iterator[Any] | AsyncIterator[Any] = iter(())
        self.children = children

    async def run(self, limit: int | None) -> None:
        """Run it to its end. Raise the first defect, with the others as notes."""
        items: Any
        if isinstance(self.items, AsyncIterable):
            start, items = self._start_async, aiter(self.items)
        else:
            start, items = self._start, iter(self.items)
        self.unread = items
        try:
            try:
                async with self.children:
                    try:
                        await start(items, limit)
                    except BaseException as raised:
                        self._stop_for_items(raised)
            finally:
                await self._complete_begun()
            if self.children.defects or not (self.failures and self.stop_early):
                await self.children.raise_bad_end(self.operator)
            self.children.raise_shielded_end()
        finally:
            # Let a generator clean up now, even if it was not read to its end.
            if isinstance(items, AsyncGenerator):
                await shielded(items.aclose())
            elif isinstance(items, Generator):
                items.close()

    def values_in_order(self) -> list[Any]:
        return [self.values[position] for position in range(len(self.values))]

    def check_count(self, count: int) -> None:
        """Raise RuntimeError unless as many items came back as were read."""
        if count != self.read:
            raise RuntimeError(
                f"{self.owner} read {self.read} items, and {count} came back: children were lost, "
                "which is a bug of effectflow or of the event loop"
            )

    def failures_in_order(self) -> list[TypedFailure]:
        return [failed for _, failed in sorted(self.failures, key=lambda pair: pair[0].start)]

    @property
    def first_failure(self) -> TypedFailure | None:
        """The first failure in time."""
        return self.operator.traced(self.failures[0][1]) if self.failures else None

    def fail(self, positions: range, failed: TypedFailure, key: object = None) -> None:
        """Record a failure to which the items at these positions led."""
        self.failures.append((positions, failed))
        if self.stop_early:
            self._stop(positions, key)

    async def _start(self, items: Iterator[Any], limit: int | None) -> None:
        if isinstance(self.items, Sized):
            count = len(self.items)
        elif limit is None:
            listed = list(items)
            count, self.unread = len(listed), iter(listed)
        else:
            count = limit
        for _ in range(count if limit is None else min(count, limit)):
            self.children.start(self._work_through, self.unread)

    async def _start_async(self, items: AsyncIterator[Any], limit: int | None) -> None:
        if limit is None:
            waiting: deque[tuple[int, Any]] = deque()
            with self.operator.branches.reading():
                async for item in items:
                    waiting.append((self.read, item))
                    self.children.start(self._run_first, waiting)
                    self.read += 1
            return
        turn = anyio.Lock()
        for _ in range(limit):
            self.children.start(self._work_through_async, items, turn)

    async def _work_through(self, items: Iterator[Any]) -> None:
        f, env, scope, values, take = self.f, self.env, self.operator.inside, self.values, self.take
        is_plain = scope.flow is PLAIN and self.key is None
        is_nested = len(scope.operators) > 1
        child: Any
        outcome: Any
        while not self.is_over:
            try:
                item = next(items)
            except StopIteration:
                return
            except BaseException as raised:
                self._stop_for_items(raised)
                return
            position = self.read
            self.read = position + 1
            if is_plain:
                # Like `_run_child`, whose calls would double the cost of an item.
                try:
                    child = f(item)
                    if child.__class__ is nodes.Pure:
                        outcome = child.value
                    else:
                        if is_nested:
                            await self._stop_if_outer_decided()
                        outcome = await in_context(copy_context(), interpret(child, env, scope))
                    if outcome.__class__ is TypedFailure:
                        self.fail(range(position, position + 1), outcome, position)
                    elif take is None:
                        values[position] = outcome
                    else:
                        await take(position, outcome)
                except BaseException as raised:
                    self._stop_for(raised, position, item)
            else:
                await self._run_child(position, item)
            if (position + 1) % _ITEMS_IN_A_TURN == 0:
                # Children that never wait must not block other tasks.
                await checkpoint()

    async def _complete_begun(self) -> None:
        """Complete the finalizers of recorded children that have not begun, if they are cancelled."""
        operator, unread = self.operator, self.unread
        if operator.inside.cancelling_operator() is None or self._has_ended:
            return
        while operator.branches.has_more_records():
            try:
                if isinstance(unread, AsyncIterator):
                    with operator.branches.reading():
                        item = await anext(unread)
                else:
                    item = next(unread)
            except Exception:
                # The items have ended, or their source fails, which the cancellation outweighs.
                return
            position = self.read
            self.read += 1
            try:
                await self._complete(item, self._key_of(position, item))
            except BaseException as raised:
                self._stop_for(raised, position, item)

    async def _complete(self, item: Any, key: int | str) -> None:
        """Complete the finalizers of a child that is cancelled, if an earlier life began it."""
        operator = self.operator
        if operator.branches.has_records(key) and not self._has_ended:
            scope = operator.branch(key, item, is_keyed=self.key is not None)
            await interpret_cancelled(self.f(item), self.env, scope)

    @property
    def _has_ended(self) -> bool:
        """Whether all children ended in an earlier life that cancelled some of them."""
        decision = self.operator.decision
        return decision is not None and decision.has_ended

    async def _work_through_async(self, items: AsyncIterator[Any], turn: anyio.Lock) -> None:
        while not self.is_over:
            try:
                async with turn:
                    with self.operator.branches.reading():
                        item = await anext(items)
                    position = self.read
                    self.read += 1
            except StopAsyncIteration:
                return
            except BaseException as raised:
                self._stop_for_items(raised)
                return
            await self._run_child(position, item)

    async def _run_first(self, waiting: deque[tuple[int, Any]]) -> None:
        # Trio starts tasks in any order; the first of them runs the first item.
        await self._run_child(*waiting.popleft())

    async def _run_child(self, position: int, item: Any) -> None:
        try:
            key = self._key_of(position, item)
            # A child that starts after the decision may still have recorded work to finalize.
            if not self.operator.branches.has_records(key):
                if self.is_over:
                    return
                await self._stop_if_outer_decided()
            outcome = await self._outcome(position, item, key)
            if outcome.__class__ is TypedFailure:
                self.fail(range(position, position + 1), outcome, key)
            elif self.take is None:
                self.values[position] = outcome
            else:
                await self.take(position, outcome)
        except BaseException as raised:
            self._stop_for(raised, position, item)

    async def _stop_if_outer_decided(self) -> None:
        """Raise the cancellation if an outer operator has decided: no child may start after that."""
        if self.operator.outer.cancelling_operator() is not None:
            await checkpoint()

    async def _outcome(self, position: int, item: Any, key: int | str) -> Any:
        """Return the outcome of a child with its own path in a durable run."""
        operator, is_keyed = self.operator, self.key is not None
        if isinstance(key, str):
            if key in self.keys:
                raise ValueError(
                    f"two items of {self.owner} have the key {key!r}, so their steps cannot be "
                    "distinguished: pass a key= function that returns another key for each item"
                )
            self.keys.add(key)
        decision = operator.decision
        if decision is None:
            scope = operator.branch(key, item, is_keyed=is_keyed)
        elif (
            position in range(*decision.value)
            if self.records_positions
            else _recorded(key) == decision.value
        ):
            scope = operator.branch(key, item, is_keyed=is_keyed, has_decided=True)
        else:
            # The earlier life cancelled this child.
            await self._complete(item, key)
            return None
        work = interpret_branch(self.f(item), self.env, scope)
        return await in_context(copy_context(), work)

    def _key_of(self, position: int, item: Any) -> int | str:
        return position if self.key is None else str(self.key(item))

    def _stop_for(self, raised: BaseException, position: int, item: Any) -> None:
        """Stop because a child ended in a defect. Raise what must end the task of the child."""
        defect = raised if isinstance(raised, Exception | Halt) else stray_cancellation(raised)
        if defect is None:
            raise raised
        self.children.defects.append(defect)
        try:
            key = self._key_of(position, item)
        except BaseException:
            # The key function is what raised.
            key = None
        self._stop(range(position, position + 1), key)

    def _stop_for_items(self, raised: BaseException) -> None:
        """Stop because the items themselves raised, which no child caused. Raise a cancellation."""
        defect = stray_cancellation(raised) or raised
        if is_cancellation(defect):
            raise defect
        self.children.defects.append(defect)
        self._stop(range(self.read, self.read), None)

    def _stop(self, positions: range, key: object) -> None:
        self.is_over = True
        span = [positions.start, positions.stop]
        self.operator.decide(span if self.records_positions else _recorded(key), failed=True)
        self.children.cancel()


def _recorded(key: object) -> object:
    """Return the key of a branch as decisions record it."""
    return escaped(key) if isinstance(key, str) else key
