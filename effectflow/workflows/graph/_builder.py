"""`StateGraph`: describe a graph part by part, and build it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, Generic, Self, TypeAlias, TypeVar, get_args

from effectflow.checkpoint.checkpoints import HasCheckpoints
from effectflow.effects import Effect
from effectflow.workflows.checks import function_problems, pure_result, workflow_name_problems
from effectflow.workflows.graph._draft import (
    Draft,
    InvalidGraph,
    make_node,
    make_parallel_node,
    node_problems,
    parallel_problems,
    types_of,
    with_types,
)
from effectflow.workflows.graph._graph import Graph
from effectflow.workflows.graph._structure import Call, Edge, Node, Structure
from effectflow.workflows.graph._walk import GraphError
from effectflow.workflows.migrations import StateMigration, check_migrations
from effectflow.workflows.workflow import Workflow, input_type

Env = TypeVar("Env", bound=HasCheckpoints)
E = TypeVar("E")
S = TypeVar("S")
B = TypeVar("B")
Choice = TypeVar("Choice", bound=Hashable)

Body: TypeAlias = Callable[[S], Effect[Env, E, B]] | Workflow[Env, E, S, B]
"""The work of a node: a function from a state to an effect, or a workflow."""


class StateGraph(Generic[Env, E, S]):
    """Describes a graph: nodes that change a state, and edges that choose the next node.

    Declare the environment, the errors and the state, and type checkers verify every node, condition and
    merge function: `StateGraph[App, ReviewError, Draft]("review")`. Each method adds a part and returns
    the builder. `build` checks the whole description and makes the workflow.

    Parameters:
        name: the workflow's name in stores and commands.
        version: change it when a code change matters to runs in progress.
        max_iterations: the number of visits after which a run that has not reached an exit fails with
            MaxIterationsExceeded. A visit of a nested graph counts as one.
        migrations: for each earlier version, a pure function from a state that it saved, as plain data,
            to that of the next version. It gets the input and the output of a run, and the outputs of
            nodes, also in nested graphs, but not those of branches or of steps within a node.

    Example:
        >>> from dataclasses import dataclass
        >>> from typing import Never
        >>> from effectflow import Checkpoints, StateGraph, pure
        >>> from effectflow.stores import MemoryStore
        >>> @dataclass(frozen=True)
        ... class App:
        ...     checkpoints: Checkpoints
        >>> halving = (
        ...     StateGraph[App, Never, int]("halving")
        ...     .node("halve", lambda number: pure(number // 2))
        ...     .node("done", lambda number: pure(number))
        ...     .edge("halve", "done", when=lambda number: number < 10)
        ...     .edge("halve", "halve")
        ...     .entry("halve")
        ...     .exit("done")
        ...     .build()
        ... )
        >>> halving.start(100).run_sync(App(Checkpoints(MemoryStore())))
        <Success: 6>
    """

    def __init__(
        self,
        name: str,
        *,
        version: str = "1",
        max_iterations: int = 1000,
        migrations: Mapping[int, StateMigration] | None = None,
    ) -> None:
        self._name = name
        self._version = version
        self._max_iterations = max_iterations
        self._migrations = migrations or {}
        self._names: list[str] = []
        self._nodes: dict[str, Node] = {}
        self._edges: list[Edge] = []
        self._entries: list[str] = []
        self._exits: list[str] = []
        self._problems: list[str] = []

    def node(self, name: str, body: Body[S, Env, E | GraphError, S]) -> Self:
        """Add a node: a function from a state to an effect that yields the next state, or a workflow.

        Each visit is a durable step with the node's name. A `@step` keeps its options (`at_most_once`,
        `retryable`), but not its name. The steps of a workflow, such as another graph, are recorded
        within the visit.
        """
        return self._add(name, node_problems(name, body), partial(make_node, name, body))

    def parallel(
        self,
        name: str,
        branches: Mapping[str, Body[S, Env, E | GraphError, B]],
        merge: Callable[[S, Mapping[str, B]], S],
    ) -> Self:
        """Add a node whose branches run concurrently, each from the same state.

        The first branch that fails cancels the others, and the node fails with its error.

        Parameters:
            name: the node's name.
            branches: the work of each branch, by name, as for `node`; but it may yield anything that a
                step can save. A step cannot save a `Machine`, which a state machine yields.
            merge: called with the state and the results of the branches, by name and in the order of
                `branches`; returns the next state. Pure.
        """
        problems = parallel_problems(name, branches, merge)
        return self._add(name, problems, partial(make_parallel_node, name, branches, merge))

    def edge(
        self,
        source: str,
        target: str,
        when: Callable[[S], bool] | None = None,
        *,
        label: str | None = None,
    ) -> Self:
        """Add an edge between two nodes. The edges out of a node are tried in the order of the calls.

        Parameters:
            source: the node that the edge leaves.
            target: the node that it leads to.
            when: called with the state that `source` returned; True if the edge may be taken. None
                always takes it. Pure: a resume calls it again.
            label: the name of the condition in diagrams and errors; the function's name by default.
        """
        if label is None:
            name = str(getattr(when, "__name__", ""))
            label = "" if name == "<lambda>" else name
        self._edges.append(Edge(source, target, when, label))
        return self

    def route(
        self, source: str, choose: Callable[[S], Choice], targets: Mapping[Choice, str]
    ) -> Self:
        """Add an edge for each choice of a function.

        This adds an edge to each target, in order, whose condition is that choice. For any other choice
        the run fails with NoEdge, unless an edge without a condition follows.

        Parameters:
            source: the node that the edges leave.
            choose: called with the state; returns one of the keys of `targets`. Pure.
            targets: the node for each choice.
        """
        expected = "a function from a state to a choice"
        self._problems += function_problems(choose, f"the route out of {source!r}", expected)
        for choice, target in targets.items():
            label = choice.name if isinstance(choice, Enum) else str(choice)
            self.edge(source, target, partial(_chooses, choose, choice), label=label)
        return self

    def entry(self, name: str) -> Self:
        """Set the node at which the graph begins."""
        self._entries.append(name)
        return self

    def exit(self, name: str) -> Self:
        """End the graph after this node. A graph may have several exits."""
        self._exits.append(name)
        return self

    def build(self) -> Graph[Env, E | GraphError, S]:
        """Build the workflow.

        Raises InvalidGraph with all problems of the description.
        """
        nodes = self._nodes.values()
        draft = Draft(self._names, self._edges, self._entries, self._exits, self._max_iterations)
        _, error, state = get_args(getattr(self, "__orig_class__", None)) or (None, None, None)
        problems = [
            *workflow_name_problems(self._name),
            *self._problems,
            *draft.problems(),
            *_refusal(lambda: check_migrations(self._name, self._version, self._migrations)),
            *_refusal(lambda: types_of(nodes, state, error, GraphError)),
        ]
        if problems:
            raise InvalidGraph(self._name, problems)
        types = types_of(nodes, state, error, GraphError)
        built = {
            name: replace(
                with_types(node, types),
                edges=tuple(edge for edge in self._edges if edge.source == name),
                is_exit=name in self._exits,
            )
            for name, node in self._nodes.items()
        }
        entry = built[self._entries[0]]
        return Graph(
            Structure(self._name, built, entry.name, self._max_iterations),
            version=self._version,
            input_type=state
            or (input_type(entry.work.function) if isinstance(entry.work, Call) else None),
            types=types,
            migrations=self._migrations,
        )

    def _add(self, name: str, problems: Iterable[str], make: Callable[[], Node]) -> Self:
        self._names.append(name)
        found = list(problems)
        try:
            if not found:
                self._nodes[name] = make()
        except ValueError as problem:
            found.append(str(problem))
        self._problems += found
        return self


def _refusal(check: Callable[[], object]) -> list[str]:
    """Return the problem that a check raises."""
    try:
        check()
    except ValueError as problem:
        return [str(problem)]
    return []


def _chooses(choose: Callable[[Any], object], choice: object, state: Any) -> bool:
    return pure_result(choose(state), "the function that chooses") == choice
