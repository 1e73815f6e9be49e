"""Map and reduce in one go: values are combined as a tree while further items are still read."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from effectflow.effects import nodes
from effectflow.effects.effect import Effect
from effectflow.effects.event_loop import in_context
from effectflow.effects.interpreter import interpret
from effectflow.effects.operators import Operator
from effectflow.effects.parallel import nothing_fails
from effectflow.effects.scope import Scope
from effectflow.effects.traversal import Source, Traversal, check_limit

__all__ = ["FAN_IN", "check_fan_in", "par_reduce", "reduction_of"]

Env = TypeVar("Env")
E = TypeVar("E")
E2 = TypeVar("E2")
A = TypeVar("A")
B = TypeVar("B")

FAN_IN = 32
"""How many values are combined at once, unless somebody says otherwise."""


def par_reduce(
    items: Iterable[A] | AsyncIterable[A],
    f: Callable[[A], Effect[Env, E, B]],
    reduce: Callable[[list[B]], Effect[Env, E2, B]],
    *,
    limit: int,
    fan_in: int = FAN_IN,
    key: Callable[[A], object] | None = None,
) -> Effect[Env, E | E2, B]:
    """Runs `f(item)` for every item, side by side, and yields one value that `reduce` made of theirs.

    Values are combined in groups of `fan_in`, in the order of the items; the values of those groups
    are combined in groups again, until one is left. Which values make a group depends on the order of
    the items alone. A group is combined as soon as it is complete, so the values that are held are
    those that wait for their neighbours: some `limit` groups of each round, however many items there are.

    The first failure cancels the rest, as in `par_traverse`; so does a defect.

    Parameters:
        items: a sync or async iterable. It is read lazily, never further ahead than `limit`.
        f: makes the effect of one item.
        reduce: makes the effect that combines values. How they are grouped must not matter to it:
            `reduce([reduce([a, b]), c])` is `reduce([a, b, c])`. With no items at all it is given an
            empty list. Of a group of later rounds that has one value, that is the value.
        limit: how many effects, of either sort, run at once, 1 or more; as many tasks are started.
        fan_in: how many values make a group, 2 or more.
        key: names an item within a durable run, as in `par_traverse`.

    Example:
        >>> from effectflow import par_reduce, pure
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
    """`par_reduce`, for an owner of the items that errors are to name.

    Parameters:
        owner: whose items they are, as errors are to say it.
        on_mapped: is told the number of items once all have ended, and before the last, incomplete
            groups are combined. The effect that it gives is run.
    """
    check_limit(limit)
    check_fan_in(fan_in)
    source = Source("par_reduce", items)

    async def perform(env: Any, scope: Scope) -> Any:
        reduction = _Reduction(owner, source.items(), f, reduce, env, scope, fan_in=fan_in, key=key)
        try:
            failed = await reduction.map(limit)
            if failed is None and on_mapped is not None:
                told = await interpret(on_mapped(reduction.mapping.read), env, scope)
                failed = told if told.__class__ is nodes.Failed else None
            return failed or await reduction.finish()
        finally:
            reduction.mapping.operator.end()

    return nodes.Perform(perform, ("par_reduce", items, f, reduce))


def check_fan_in(fan_in: int) -> None:
    """Refuse groups that would never become fewer."""
    if fan_in < 2:
        raise ValueError(f"fan_in must be 2 or more, not {fan_in}")


class _Reduction:
    """One run of `par_reduce`.

    Items have the places `map[key]` in a durable run, and groups `reduce[round.number]`.
    """

    def __init__(
        self,
        owner: str,
        items: Any,
        f: Callable[[Any], Effect[Any, Any, Any]],
        reduce: Callable[[list[Any]], Effect[Any, Any, Any]],
        env: Any,
        scope: Scope,
        *,
        fan_in: int,
        key: Callable[[Any], object] | None,
    ) -> None:
        self.reduce = reduce
        self.env = env
        self.tree: ReductionTree[Any] = ReductionTree(fan_in)
        operator = Operator.begin(scope, "map")
        # Groups are branches of their own name, which a failure of an item or a group cancels.
        self.groups = Operator.begin(operator.inside, "reduce")
        decision = operator.decision
        self.decided = None if decision is None else range(*decision.value)
        self.mapping = Traversal(
            owner,
            operator,
            items,
            f,
            env,
            scope,
            key=key,
            decided=None if decision is None else self._is_decided,
            take=self._take,
            decision_of=lambda positions, _: [positions.start, positions.stop],
        )

    def _is_decided(self, position: int, _key: int | str) -> bool:
        return self.decided is not None and position in self.decided

    async def map(self, limit: int) -> nodes.Failed | None:
        """Run every item, and combine each complete group. Return the first failure."""
        await self.mapping.run(limit)
        if self.mapping.first_failure is None and self.decided is None:
            self.mapping.operator.branches.check_complete()
        return self.mapping.first_failure

    async def finish(self) -> Any:
        """Combine the groups that are left. Return the root, or a failure."""
        if self.mapping.read == 0:
            return await self._combine(Group(1, 0, []))
        while (group := self.tree.take_incomplete()) is not None:
            failure = await self._climb(group)
            if failure is not None:
                return failure[1]
        if self.decided is not None:
            raise RuntimeError(nothing_fails("par_reduce", self.decided))
        self.groups.branches.check_complete()
        return self.tree.root

    async def _take(self, position: int, value: Any) -> None:
        """Take the value of an item, and combine each group that it completes."""
        if self.decided is not None and position not in self.decided:
            return
        group = self.tree.add(0, position, value)
        failure = None if group is None else await self._climb(group)
        if failure is not None:
            self.mapping.fail(*failure)

    async def _climb(self, group: Group[Any] | None) -> tuple[range, nodes.Failed] | None:
        """Combine a group, then the one that this completes, and so on up to one that has to wait."""
        while group is not None:
            outcome = await self._combine(group)
            if outcome.__class__ is nodes.Failed:
                return self.tree.positions(group), outcome
            group = self.tree.add(group.round, group.number, outcome)
        return None

    async def _combine(self, group: Group[Any]) -> Any:
        if group.round > 1 and len(group.values) == 1:
            return group.values[0]
        key = f"{group.round}.{group.number}"
        scope = self.groups.branch(key) if self.decided is None else self._deciding_group(key)
        work = self.groups.run_branch(self.reduce(group.values), self.env, scope)
        return await in_context(copy_context(), work)

    def _deciding_group(self, key: str) -> Scope:
        scope = self.groups.deciding_branch(key).copy()
        scope.operators = self.mapping.operator.outer.operators
        return scope


@dataclass(frozen=True, slots=True)
class Group(Generic[B]):
    """Values that are to become one.

    Attributes:
        round: the round of the tree that combines them, from 1.
        number: which group of that round it is, from 0.
        values: at least one, in the order of their items.
    """

    round: int
    number: int
    values: list[B]


class ReductionTree(Generic[B]):
    """Groups values in the order of their items, in whichever order they come.

    It holds the values that wait for their neighbours, and nothing else.
    """

    def __init__(self, fan_in: int) -> None:
        self.fan_in = fan_in
        self._waiting: list[dict[int, dict[int, B]]] = []

    def add(self, level: int, number: int, value: B) -> Group[B] | None:
        """Take the value of an item (level 0) or of a group (its round); give the group it completes."""
        if level == len(self._waiting):
            self._waiting.append({})
        parent, place = divmod(number, self.fan_in)
        group = self._waiting[level].setdefault(parent, {})
        group[place] = value
        return self._take(level, parent) if len(group) == self.fan_in else None

    def take_incomplete(self) -> Group[B] | None:
        """Once there is no further item: a group of the lowest round that has one. None at the root."""
        for level, groups in enumerate(self._waiting):
            for parent, group in groups.items():
                is_root = 0 < level == len(self._waiting) - 1 and len(group) == 1
                return None if is_root else self._take(level, parent)
        return None

    @property
    def root(self) -> B:
        """The value that is left, once no group is."""
        return self._waiting[-1][0][0]

    def positions(self, group: Group[B]) -> range:
        """Those of the items that a group is made of, and of such as would have completed it."""
        size = self.fan_in**group.round
        return range(group.number * size, (group.number + 1) * size)

    def _take(self, level: int, parent: int) -> Group[B]:
        group = self._waiting[level].pop(parent)
        return Group(level + 1, parent, [group[place] for place in sorted(group)])
