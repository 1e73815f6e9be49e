"""Lead a state through a graph: one effect, composed of a durable step for each visit of a node."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from effectflow.checkpoint.durable_step import durable
from effectflow.checkpoint.step import arguments_of
from effectflow.effects import Effect, par_traverse
from effectflow.effects.nodes import Fail, FromGenerator, Suspend
from effectflow.effects.scope import Scope
from effectflow.workflows.flow import flow
from effectflow.workflows.graph.errors import MaxIterationsExceeded, NoEdge
from effectflow.workflows.graph.structure import Call, Nested, Node, Parallel, Structure
from effectflow.workflows.graph.watch import Watch

__all__ = ["walk"]

AnyEffect = Effect[Any, Any, Any]


def walk(structure: Structure, state: Any) -> AnyEffect:
    """The effect that leads a state from the entry of a graph to an exit, and yields it there."""

    def begin(scope: Scope) -> AnyEffect:
        return FromGenerator(_walk, (structure, state, Watch.of(structure.name, scope)))

    return Suspend(begin, ("walk", structure.name))


def _walk(structure: Structure, state: Any, watch: Watch | None) -> Generator[AnyEffect, Any, Any]:
    # A loop that yields each visit, so that however many there are nothing nests or grows.
    visits: dict[str, int] = {}
    name = structure.entry
    for _ in range(structure.max_iterations):
        node = structure.nodes[name]
        visits[name] = visits.get(name, 0) + 1
        state = yield _visit(node, state, visits[name], watch)
        if node.is_exit:
            return state
        edge = node.next_edge(state, watch.report() if watch else None)
        if edge is None:
            return (yield Fail(NoEdge(structure.name, name, [str(edge) for edge in node.edges])))
        name = edge.target
    limit = structure.max_iterations
    return (yield Fail(MaxIterationsExceeded(structure.name, name, limit, visits)))


def _visit(node: Node, state: Any, visit: int, watch: Watch | None) -> AnyEffect:
    """One visit of a node, as a durable step."""

    def work(scope: Scope) -> AnyEffect:
        # Made only if it is to be run: of a node that is skipped, not even the function is called.
        return _work(node, state, visit, watch)

    effect = Suspend(work) if watch is None else watch.over(node, visit, Suspend(work))
    return durable(node.definition, effect, lambda: arguments_of(node.name, {"state": state}))


def _work(node: Node, state: Any, visit: int, watch: Watch | None) -> AnyEffect:
    match node.work:
        case Call(function):
            return function(state)
        case Nested(body):
            return body(state)
        case Parallel(branches, merge):

            def join(results: list[Any]) -> Any:
                names = (branch.name for branch in branches)
                return merge(state, dict(zip(names, results, strict=True)))

            together = par_traverse(
                branches,
                lambda branch: _visit(branch, state, visit, watch),
                key=lambda branch: branch.name,
            )
            return flow(together.map(join), ("parallel", node.name))
