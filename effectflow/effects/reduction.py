"""Map and reduce in one go: values are combined as a tree while further items are still read."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from contextvars import copy_context
from typing import Any, TypeVar

from returns.maybe import Maybe

from effectflow.effects import nodes
from effectflow.effects.effect import Effect
from effectflow.effects.event_loop import in_context
from effectflow.effects.interpreter import interpret
from effectflow.effects.reduction_tree import Group, ReductionTree
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
        failed = await reduction.map(limit)
        if failed is None and on_mapped is not None:
            told = await interpret(on_mapped(reduction.mapping.read), env, scope)
            failed = told if told.__class__ is nodes.Failed else None
        return failed or await reduction.finish()

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
        self.scope = scope
        self.tree: ReductionTree[Any] = ReductionTree(fan_in)
        path = scope.next_path("map")
        self.reduce_path = scope.next_path("reduce")
        # Which failure came first is chance: a resumed run that handled one handles it again. What is
        # recorded settles the failures of its flow, so it is recorded in one that has none.
        self.decision_path = f"{path}/first_failure"
        self.only = _decided(scope, self.decision_path)
        self.mapping = Traversal(
            owner, path, items, f, env, scope, key=key, only=self.only, take=self._take
        )

    async def map(self, limit: int) -> nodes.Failed | None:
        """Run every item, and combine each group that is complete; give the first failure."""
        await self.mapping.run(limit, if_stopped=self._first_failure)
        return self._first_failure()

    def _first_failure(self) -> nodes.Failed | None:
        """The failure that has ended the mapping, if one has, once it is recorded."""
        first = self.mapping.first_failure()
        return None if first is None else self._decide(*first)

    async def finish(self) -> Any:
        """Combine the groups that are left, and give the root, or a failure."""
        if self.mapping.read == 0:
            return await self._combine(Group(1, 0, []))
        while (group := self.tree.take_incomplete()) is not None:
            failure = await self._climb(group)
            if failure is not None:
                return self._decide(*failure)
        if self.only is not None:
            raise RuntimeError(
                f"{self.decision_path!r} says that items {self.only.start} to {self.only.stop - 1} led "
                "to a failure, which was handled or is final, and now nothing fails: let what may "
                "fail be a step"
            )
        return self.tree.root

    async def _take(self, position: int, value: Any) -> None:
        """Take the value of an item, and combine each group that it completes."""
        if self.only is not None and position not in self.only:
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
        scope = self.mapping.scope.child(self.reduce_path, f"{group.round}.{group.number}")
        effect = self.reduce(group.values)
        return await in_context(copy_context(), interpret(effect, self.env, scope))

    def _decide(self, positions: range, failed: nodes.Failed) -> nodes.Failed:
        """Record the failure that ends it: one item's, or that of a group with all its items."""
        if self.scope.decisions is not None and self.only is None:
            where = [positions.start, positions.stop]
            self.mapping.operator.record_failure(
                self.scope.decisions, self.mapping.path, self.decision_path, where
            )
        return failed


def _decided(scope: Scope, path: str) -> range | None:
    """The items that led to the failure which a run that is resumed has handled."""
    if scope.decisions is None:
        return None
    known: Maybe[tuple[int, int]] = scope.decisions.recall(path)
    return known.map(lambda bounds: range(*bounds)).value_or(None)
