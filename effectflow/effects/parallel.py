"""Parallel operators, which are effects themselves. Children never outlive their operator."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any, Never, TypeVar, overload

from effectflow.effects import nodes
from effectflow.effects.effect import Effect
from effectflow.effects.operators import Operator
from effectflow.effects.scope import Scope
from effectflow.effects.traversal import Source, Traversal, check_limit

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")
B = TypeVar("B")
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
    return _parallel("par", effects, nodes.itself, gather=tuple)


def par_try_all(
    effects: Iterable[Effect[Env, E, A]] | AsyncIterable[Effect[Env, E, A]],
    *,
    limit: int | None = None,
) -> Effect[Env, E, list[A]]:
    """Run the effects in parallel and yield their values in the order of the effects.

    The first failure cancels the others. See `par_traverse`, of which the effects are the items.
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
    return _parallel("par_traverse", items, f, key=key, limit=limit)


def traverse(items: Iterable[A], f: Callable[[A], Effect[Env, E, B]]) -> Effect[Env, E, list[B]]:
    """Run `f(item)` for every item, one after another, and yield the values.

    The first failure ends it, and no further item is read.
    """
    source = Source("traverse", items)

    def traverse(items: Iterable[A], f: Callable[[A], Effect[Env, E, B]]) -> Any:
        values: list[Any] = []
        for item in source.items():
            values += [(yield f(item))]
        return values

    return nodes.FromGenerator(traverse, (items, f))


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
    source = Source(name, items)

    async def perform(env: Any, scope: Scope) -> Any:
        operator = Operator.begin(scope, name)
        traversal = Traversal(
            f"one {name}", operator, source.items(), f, env, key=key, stop_early=stop_early
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
            raise RuntimeError(nothing_fails(name, operator.decision.value))
        if traversal.failures:
            return nodes.joined(traversal.failures_in_order())
        return gather(traversal.values_in_order())

    return nodes.Perform(perform, (name, items) if f is nodes.itself else (name, items, f))


def nothing_fails(operator: str, branch: str | int | range) -> str:
    """Return the message for a handled failure that does not recur."""
    match branch:
        case str():
            what = repr(f"{operator}[{branch}]")
        case int():
            what = f"item {branch} of {operator!r}"
        case _:
            what = f"a part of items {branch.start} to {branch.stop - 1} of {operator!r}"
    return (
        f"{what} led to a failure, which was handled, and now it does not fail, or is not among the "
        "items: put operations that may fail into steps, and give a resume the original items"
    )
