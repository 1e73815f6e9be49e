"""Parallel operators, which are effects themselves. Children never outlive their operator."""

from __future__ import annotations

from collections.abc import (
    AsyncIterable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Any, Never, TypeVar, cast, overload

from returns.result import Failure, Result, Success

from effectflow.effects import nodes
from effectflow.effects.arguments import check_count, check_effects, check_function
from effectflow.effects.effect import Effect
from effectflow.effects.fork import Fork, Source
from effectflow.effects.scope import Scope, supervised
from effectflow.effects.trails import TypedFailure, joined
from effectflow.effects.type_variables import (
    A1,
    A2,
    A3,
    A4,
    A5,
    A6,
    A7,
    A8,
    E1,
    E2,
    E3,
    E4,
    E5,
    E6,
    E7,
    E8,
)

Env = TypeVar("Env")
E = TypeVar("E")
A = TypeVar("A")
B = TypeVar("B")
K = TypeVar("K")


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
    return _parallel("par_all", effects, nodes.itself, limit=limit, stops_early=False)


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
        >>> from effectflow import attempt, par_traverse
        >>> from effectflow.effects import partition
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


class _AllEnds:
    """The ends of branches that must all succeed.

    Attributes:
        stops_early: whether the first failure decides. Otherwise all branches run to their end.
        has_outcome: False, because a defect outweighs a failure.
    """

    has_outcome = False

    def __init__(self, *, stops_early: bool) -> None:
        self.stops_early = stops_early
        self.values: dict[int, object] = {}
        self.failures: list[tuple[int, TypedFailure]] = []

    def take(self, position: int, outcome: object) -> bool:
        if type(outcome) is not TypedFailure:
            self.values[position] = outcome
            return False
        self.failures.append((position, outcome))
        return self.stops_early

    def outcome(self, operator: Fork, gather: Callable[[list[object]], object]) -> object:
        """Return all values, or the first failure in time, or all of them in the order of the items."""
        if self.failures and self.stops_early:
            return operator.traced(self.failures[0][1])
        operator.check_count(len(self.values) + len(self.failures))
        if self.failures:
            return joined([failed for _, failed in sorted(self.failures, key=lambda one: one[0])])
        return gather([self.values[position] for position in range(len(self.values))])


def _parallel(
    name: str,
    items: Iterable[Any] | AsyncIterable[Any],
    f: Callable[[Any], Effect[Any, Any, Any]],
    *,
    key: Callable[[Any], object] | None = None,
    limit: int | None = None,
    stops_early: bool = True,
    gather: Callable[[list[object]], object] = list,
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
    async def perform(env: Any, scope: Scope) -> object:
        ends = _AllEnds(stops_early=stops_early)
        operator = Fork(
            scope,
            name,
            source.items(),
            f,
            env,
            ends,
            key=key,
            limit=limit,
            is_immediate=depth is not None,
        )
        await operator.run()
        return ends.outcome(operator, gather)

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
