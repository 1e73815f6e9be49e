"""Run a graph: one durable step per visit of a node, reported to observers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from returns.result import Result, Success

from effectflow.builders.events import Reporter, path_of, with_reporter
from effectflow.builders.graph._events import CycleDetected, EdgeEvaluated, NodeEnded, NodeStarted
from effectflow.builders.graph._structure import Edge, Function, Nested, Node, Parallel, Structure
from effectflow.checkpoint.step import durable
from effectflow.checkpoint.values import encode_arguments, safe_repr
from effectflow.effects import Exit, Interruption, par_traverse
from effectflow.effects.errors import Copyable
from effectflow.effects.nodes import AnyEffect, Context, Suspend
from effectflow.effects.scope import Scope
from effectflow.runs.step_loop import Done, Next, Stuck, advance

_SHOWN_VISITS = 20
"""The visits that the description of a failure shows: the last ones."""

_SHOWN_STATE = 300
"""The length of the text of a state in the description of a failure."""


class GraphError(Copyable, Exception):
    """A run of a graph cannot continue. The steps that are done stay done.

    ::

        GraphError
        ├── NoEdge                   no condition of a node's edges holds
        └── MaxIterationsExceeded    the run made `max_iterations` visits without reaching an exit

    Attributes:
        graph: the graph's name.
        node: where the run stopped.
    """

    __module__ = "effectflow.graphs"

    graph: str
    node: str


class NoEdge(GraphError):
    """A node is complete, and no condition of its edges holds. `edges` describes those edges."""

    __module__ = "effectflow.graphs"

    def __init__(self, graph: str, node: str, edges: Sequence[str]) -> None:
        self.graph = graph
        self.node = node
        self.edges: tuple[str, ...] = tuple(edges)
        super().__init__(
            f"graph {graph!r} is stuck after node {node!r}: no condition holds of its edges "
            f"{', '.join(self.edges)}. Add a last edge without a condition, or correct the conditions."
        )


class MaxIterationsExceeded(GraphError):
    """A run has made `max_iterations` visits without reaching an exit.

    `node` is the node that it would have visited next; `visits` counts the visits of each node.
    """

    __module__ = "effectflow.graphs"

    def __init__(
        self, graph: str, node: str, max_iterations: int, visits: Mapping[str, int]
    ) -> None:
        self.graph = graph
        self.node = node
        self.max_iterations = max_iterations
        self.visits: dict[str, int] = dict(visits)
        counts = ", ".join(f"{name} {count}" for name, count in visits.items())
        super().__init__(
            f"graph {graph!r} made {max_iterations} visits (its max_iterations) without reaching an "
            f"exit; the next node was {node!r}. Visits: {counts}. If the loop may take this long, raise "
            "max_iterations and resume the run: it continues from here."
        )


class Reached(NamedTuple):
    """A state, the node that returned it (None at the beginning), and the visits so far.

    `path` has the nodes of the last visits, in order.
    """

    state: Any
    node: Node | None = None
    visits: Mapping[str, int] = MappingProxyType({})
    path: tuple[str, ...] = ()

    def place(self, where: str) -> str:
        """Describe where a graph failed: the path to there, and the state."""
        total = sum(self.visits.values())
        path = " > ".join((*(["..."] if total > len(self.path) else []), *self.path))
        state = " ".join(safe_repr(self.state).split())
        shown = state if len(state) <= _SHOWN_STATE else f"{state[:_SHOWN_STATE]}..."
        return f"{where}, after {path or 'no other node'}, with state {shown}"


def walk(structure: Structure, state: Any) -> AnyEffect:
    """Return the effect that takes a state from the entry of a graph to an exit, and yields it there."""
    shown = ("walk", structure.name)

    def begin(reporter: Reporter | None, _scope: Scope) -> AnyEffect:
        watch = None if reporter is None else WalkEvents(structure.name, reporter)
        return advance(partial(pick, structure, watch), Reached(state), shown)

    return with_reporter(begin, shown)


def pick(
    structure: Structure, watch: WalkEvents | None, reached: Reached
) -> Next[Reached] | Done | Stuck:
    """Choose the node to visit next: the target of the first edge that holds.

    The watch reports each edge that is tried; without one, this is pure.
    """
    name, node, visits = structure.entry, reached.node, reached.visits
    if node is not None:
        if node.is_exit:
            return Done(reached.state)
        edge = node.next_edge(reached.state, watch.report() if watch else None)
        if edge is None:
            stuck = NoEdge(structure.name, node.name, [str(edge) for edge in node.edges])
            return Stuck(stuck, (reached.place(f"in graph {structure.name!r}"),))
        name = edge.target
    limit = structure.max_iterations
    if sum(visits.values()) == limit:
        exceeded = MaxIterationsExceeded(structure.name, name, limit, visits)
        return Stuck(exceeded, (reached.place(f"in graph {structure.name!r}"),))
    chosen, counted = structure.nodes[name], {**visits, name: visits.get(name, 0) + 1}
    path = (*reached.path[1 - _SHOWN_VISITS :], name)

    def place() -> str:
        return reached.place(f"in node {name!r} of graph {structure.name!r}, visit {counted[name]}")

    return Next(
        Context(_visit(chosen, reached.state, counted[name], watch), place),
        lambda state: Reached(state, chosen, counted, path),
    )


def _visit(node: Node, state: Any, visit: int, watch: WalkEvents | None) -> AnyEffect:
    """Return one visit of a node, as a durable step."""
    # Suspended, so that a resume that skips the step does not even call the node's function.
    work = Suspend(lambda _env, _scope: _work(node, state, visit, watch))
    effect = work if watch is None else watch.over(node, visit, work)
    arguments = partial(encode_arguments, {"state": state}, path=node.name)
    return durable(node.definition, effect, arguments)


def _work(node: Node, state: Any, visit: int, watch: WalkEvents | None) -> AnyEffect:
    match node.work:
        case Function(function):
            return function(state)
        case Nested(workflow):
            return workflow.body(state)
        case Parallel(branches, merge):

            def join(results: list[Any]) -> Any:
                names = (branch.name for branch in branches)
                return merge(state, dict(zip(names, results, strict=True)))

            together = par_traverse(
                branches,
                lambda branch: Context(
                    _visit(branch, state, visit, watch), f"in branch {branch.name!r}"
                ),
                key=lambda branch: branch.name,
            )
            return together.map(join)


class WalkEvents:
    """Tells observers about one walk through a graph, without the steps that are skipped."""

    def __init__(self, graph: str, reporter: Reporter) -> None:
        self._graph = graph
        self._reporter = reporter
        self._has_run_a_node = False

    def over(self, node: Node, visit: int, work: AnyEffect) -> AnyEffect:
        """Return the work of one visit, with notifications of its beginning and its end."""

        def begin(_env: object, scope: Scope) -> AnyEffect:
            self._has_run_a_node = True
            reporter = self._reporter
            path = path_of(scope, node.name, visit)
            place = (reporter.run_id, self._graph, node.name, visit, path)
            if visit > 1:
                reporter.report(CycleDetected(*place))
            return reporter.around(
                work, NodeStarted(*place), lambda ended: NodeEnded(*place, _outcome(ended))
            )

        return Suspend(begin)

    def report(self) -> Callable[[Edge, bool], None] | None:
        """Return what to call for each edge that is tried; None after a visit that was skipped."""
        if not self._has_run_a_node:
            return None
        self._has_run_a_node = False
        return self._evaluated

    def _evaluated(self, edge: Edge, is_taken: bool) -> None:
        run_id = self._reporter.run_id
        self._reporter.report(
            EdgeEvaluated(run_id, self._graph, edge.source, edge.target, is_taken)
        )


def _outcome(ended: Exit[Any, Any]) -> Literal["completed", "failed", "interrupted"]:
    if isinstance(ended, Result):
        return "completed" if isinstance(ended, Success) else "failed"
    return "interrupted" if isinstance(ended, Interruption) else "failed"
