"""Map and reduce together: values are combined as a tree while further items are read."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from effectflow.effects import nodes
from effectflow.effects.arguments import check_count, check_function
from effectflow.effects.effect import Effect
from effectflow.effects.event_loop import in_context
from effectflow.effects.fiber import PLAIN, Fiber
from effectflow.effects.fork import Fork, Source
from effectflow.effects.interpreter import interpret
from effectflow.effects.parallel import check_item_functions
from effectflow.effects.scope import Operator, Scope, supervised
from effectflow.effects.trails import TypedFailure

Env = TypeVar("Env")
E = TypeVar("E")
E2 = TypeVar("E2")
A = TypeVar("A")
B = TypeVar("B")

FAN_IN = 32
"""The number of values that are combined in one group by default."""


def par_reduce(
    items: Iterable[A] | AsyncIterable[A],
    f: Callable[[A], Effect[Env, E, B]],
    reduce: Callable[[list[B]], Effect[Env, E2, B]],
    *,
    limit: int,
    fan_in: int = FAN_IN,
    key: Callable[[A], object] | None = None,
) -> Effect[Env, E | E2, B]:
    """Run `f(item)` for every item in parallel, and yield one value that `reduce` makes of the values.

    Values are combined in groups of `fan_in`, in the order of the items. The values of these groups are
    combined in groups again, until one is left. The groups depend only on the order of the items. A
    group is combined as soon as it is complete. So only the values that wait for their neighbours are
    kept: about `limit` groups of each round, for any number of items.

    The first failure or defect cancels the others, as in `par_traverse`.

    Parameters:
        items: a sync or async iterable. It is read lazily, never further ahead than `limit`.
        f: creates the effect of one item.
        reduce: creates the effect that combines values. The result must not depend on the grouping:
            `reduce([reduce([a, b]), c])` is `reduce([a, b, c])`. Without items it receives an empty
            list. A group of a later round with a single value is not combined.
        limit: the number of effects of both kinds that run at the same time, at least 1.
        fan_in: the number of values in a group, at least 2.
        key: names an item within a durable run, as in `par_traverse`.

    Example:
        >>> from effectflow import pure
        >>> from effectflow.effects import par_reduce
        >>> total = par_reduce(range(1000), pure, lambda values: pure(sum(values)), limit=10)
        >>> total.run_sync(None)
        <Success: 499500>
    """
    return reduction_of(
        "one par_reduce", items, f, reduce, limit=limit, fan_in=fan_in, key=key, on_mapped=None
    )


def reduction_of(
    owner: str,
    items: Iterable[A] | AsyncIterable[A],
    f: Callable[[A], Effect[Env, E, B]],
    reduce: Callable[[list[B]], Effect[Env, E2, B]],
    *,
    limit: int,
    fan_in: int,
    key: Callable[[A], object] | None,
    on_mapped: Callable[[int], Effect[Env, E2, object]] | None,
) -> Effect[Env, E | E2, B]:
    """Return `par_reduce` with an owner of the items for error messages.

    Parameters:
        owner: the owner of the items, as error messages name it.
        on_mapped: receives the number of items after all have ended, and before the last, incomplete
            groups are combined. The effect that it returns is run.
    """
    check_count("limit", limit, least=1)
    check_count("fan_in", fan_in, least=2)
    check_item_functions("par_reduce", f, key)
    check_function(reduce, "par_reduce")
    source = Source("par_reduce", items)

    @supervised
    async def perform(env: Any, scope: Scope) -> Any:
        reduction = _Reduction(
            owner, source.items(), f, reduce, env, scope, limit=limit, fan_in=fan_in, key=key
        )
        failed = await reduction.map()
        if failed is None and on_mapped is not None:
            told = await interpret(on_mapped(reduction.mapping.read), env, scope)
            failed = told if told.__class__ is TypedFailure else None
        return failed or await reduction.finish()

    return nodes.Perform(
        perform, ("par_reduce", items, f, reduce, nodes.Options(limit=limit, key=key))
    )


class _Reduction:
    """One run of `par_reduce`: the ends of its items, and the groups that combine their values.

    In a durable run, items have the paths `map[key]`, and groups `reduce[round.number]`.
    """

    has_outcome = False

    def __init__(
        self,
        owner: str,
        items: Any,
        f: Callable[[Any], Effect[Any, Any, Any]],
        reduce: Callable[[list[Any]], Effect[Any, Any, Any]],
        env: Any,
        scope: Scope,
        *,
        limit: int,
        fan_in: int,
        key: Callable[[Any], object] | None,
    ) -> None:
        self.reduce = reduce
        self.env = env
        self.taken = 0
        self.failure: TypedFailure | None = None
        self.tree: ReductionTree[Any] = ReductionTree(fan_in)
        self.mapping = Fork(
            scope,
            "map",
            items,
            f,
            env,
            self,
            owner=owner,
            key=key,
            limit=limit,
            follow=self._follow,
        )
        # Groups are branches with another name. A failure of an item or a group cancels them.
        self.groups = Operator(self.mapping.inside, "reduce")

    def take(self, position: int, outcome: Any) -> bool:
        if outcome.__class__ is not TypedFailure:
            self.taken += 1
            return False
        self.failure = self.failure or outcome
        return True

    async def map(self) -> TypedFailure | None:
        """Run every item, and combine each complete group. Return the first failure."""
        await self.mapping.run()
        return self.mapping.traced(self.failure)

    async def finish(self) -> Any:
        """Combine the remaining groups. Return the root or a failure."""
        fiber = self.mapping.outer.fiber
        if self.mapping.read == 0:
            return await self._combine(Group(1, 0, []), fiber)
        while (group := self.tree.take_incomplete()) is not None:
            failure = await self._climb(group, fiber)
            if failure is not None:
                return failure
        self.mapping.check_count(self.taken)
        return self.tree.root

    async def _follow(self, position: int, value: Any, fiber: Fiber) -> None:
        """Add the value of an item, and combine each group that it completes."""
        group = self.tree.add(0, position, value)
        failure = None if group is None else await self._climb(group, fiber)
        if failure is not None:
            self.failure = self.failure or failure
            self.mapping.stop(fiber)

    async def _climb(self, group: Group[Any] | None, fiber: Fiber) -> TypedFailure | None:
        """Combine a group, then the group that this completes, up to one that must wait."""
        while group is not None:
            if self.mapping.is_over:
                # Another item has failed.
                return None
            outcome = await self._combine(group, fiber)
            if outcome.__class__ is TypedFailure:
                return outcome
            group = self.tree.add(group.round, group.number, outcome)
        return None

    async def _combine(self, group: Group[Any], fiber: Fiber) -> Any:
        if group.round > 1 and len(group.values) == 1:
            return group.values[0]
        scope = self.groups.inside
        if fiber is not PLAIN:
            scope = scope.with_fiber(fiber)
        has_failed = True
        fiber.enter(self.groups, group.key)
        try:
            work = interpret(self.reduce(group.values), self.env, scope)
            outcome = await in_context(copy_context(), work)
            has_failed = outcome.__class__ is TypedFailure
            return outcome
        finally:
            fiber.leave(self.groups, has_failed=has_failed)


@dataclass(frozen=True, slots=True)
class Group(Generic[B]):
    """Values that will be combined.

    Attributes:
        round: the round of the tree that combines them, from 1.
        number: the number of the group in that round, from 0.
        values: at least one, in the order of their items.
    """

    round: int
    number: int
    values: list[B]

    @property
    def key(self) -> str:
        return f"{self.round}.{self.number}"


class ReductionTree(Generic[B]):
    """Groups values in the order of their items. They may arrive in any order.

    It keeps only the values that wait for their neighbours.
    """

    def __init__(self, fan_in: int) -> None:
        self.fan_in = fan_in
        self._waiting: list[dict[int, dict[int, B]]] = []

    def add(self, level: int, number: int, value: B) -> Group[B] | None:
        """Add the value of an item (level 0) or of a group (its round). Return the group it completes."""
        if level == len(self._waiting):
            self._waiting.append({})
        parent, place = divmod(number, self.fan_in)
        group = self._waiting[level].setdefault(parent, {})
        group[place] = value
        return self._take(level, parent) if len(group) == self.fan_in else None

    def take_incomplete(self) -> Group[B] | None:
        """Return a group of the lowest round that has one, after the last item. None at the root."""
        for level, groups in enumerate(self._waiting):
            for parent, group in groups.items():
                is_root = 0 < level == len(self._waiting) - 1 and len(group) == 1
                return None if is_root else self._take(level, parent)
        return None

    @property
    def root(self) -> B:
        """The remaining value, once no group is left."""
        return self._waiting[-1][0][0]

    def _take(self, level: int, parent: int) -> Group[B]:
        group = self._waiting[level].pop(parent)
        return Group(level + 1, parent, [group[place] for place in sorted(group)])
