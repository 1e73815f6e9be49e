"""`StateGraph`: describe a graph piece by piece, and build it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, Generic, Self, TypeAlias, TypeVar, get_args

from effectflow.checkpoint.checkpoints import HasCheckpoints
from effectflow.checkpoint.values import KnownTypes
from effectflow.effects import Effect
from effectflow.workflows.answers import answered
from effectflow.workflows.checks import function_problems, workflow_name_problems
from effectflow.workflows.graph.errors import GraphError, InvalidGraph
from effectflow.workflows.graph.graph import Graph
from effectflow.workflows.graph.nodes import (
    known_to,
    node_of,
    node_problems,
    parallel_node,
    parallel_problems,
    sharing,
)
from effectflow.workflows.graph.structure import Call, Edge, Node, Structure
from effectflow.workflows.graph.validation import Draft, problems_of
from effectflow.workflows.linear import input_type
from effectflow.workflows.migrating import Migration, check_migrations
from effectflow.workflows.workflow import Workflow

__all__ = ["StateGraph"]

Env = TypeVar("Env", bound=HasCheckpoints)
E = TypeVar("E")
S = TypeVar("S")
B = TypeVar("B")
Choice = TypeVar("Choice", bound=Hashable)

Body: TypeAlias = Callable[[S], Effect[Env, E, B]] | Workflow[Env, E, S, B]
"""What a node does with a state: a function that makes an effect, or a workflow."""


class StateGraph(Generic[Env, E, S]):
    """Describes a graph: nodes that change a state, and edges that say which comes next.

    Say what the nodes need, what they may fail with, and what the state is, and the checkers hold every
    node, condition and merge function to it: `StateGraph[App, ReviewError, Draft]("review")`. Each
    method adds a part and gives back the graph, to go on with. `build` checks the whole and makes the
    workflow; nothing is refused before that.

    Parameters:
        name: what stores and commands call the workflow.
        version: change it when a change of the code matters to runs that are under way.
        max_iterations: how many nodes one run may visit, sub-graphs counted as one node, before it
            fails with MaxIterationsExceeded.
        migrations: for each earlier version, a pure function from a state that it saved, as plain data,
            to that of the next version. It is given the input and the output of a run, and what nodes
            gave, those of sub-graphs too; not what steps within a node or branches gave.

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
        migrations: Mapping[int, Migration] | None = None,
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
        """Add a node: a function from a state to an effect that yields the next one, or a workflow.

        Each visit is a durable step of the node's name. A `@step` keeps what was said of it
        (`at_most_once`, `retryable`) and takes the node's name. The steps of a workflow, such as another
        graph, are recorded within the visit.
        """
        return self._add(name, node_problems(name, body), partial(node_of, name, body))

    def parallel(
        self,
        name: str,
        branches: Mapping[str, Body[S, Env, E | GraphError, B]],
        merge: Callable[[S, Mapping[str, B]], S],
    ) -> Self:
        """Add a node whose branches run side by side, each from the same state.

        The first branch that fails cancels the others and is the failure of the node.

        Parameters:
            name: the node's name.
            branches: what each branch does, by its name: as for `node`, but it may yield anything that
                a step can save. A `Machine`, which a state machine yields, is nothing of that kind.
            merge: makes the next state of the one before and what each branch gave, by its name and in
                the order of `branches`, whichever ended first. It must be pure.
        """
        problems = parallel_problems(name, branches, merge)
        return self._add(name, problems, partial(parallel_node, name, branches, merge))

    def edge(
        self,
        source: str,
        target: str,
        when: Callable[[S], bool] | None = None,
        *,
        label: str | None = None,
    ) -> Self:
        """Add a way from one node to another. Those out of one node are tried in the order given.

        Parameters:
            source: the node that it leads out of.
            target: the node that it leads to.
            when: whether it may be taken with the state that `source` gave; always if None. It must
                be pure: a resume asks it again.
            label: what drawings and errors call the condition; the function's name if None.
        """
        shown = _name_of(when) if label is None else label
        self._edges.append(Edge(source, target, when, shown))
        return self

    def route(
        self, source: str, choose: Callable[[S], Choice], targets: Mapping[Choice, str]
    ) -> Self:
        """Add a way for each choice that a function makes of the state.

        It is the same as an edge to each target, in order, whose condition is that choice. A choice
        that is not among them fails with NoEdge, unless an edge without a condition follows.

        Parameters:
            source: the node that the ways lead out of.
            choose: says which one to take. It must be pure.
            targets: the node for each choice.
        """
        takes = "a function from a state to a choice"
        self._problems += function_problems(choose, f"the route out of {source!r}", takes)
        for choice, target in targets.items():
            label = choice.name if isinstance(choice, Enum) else str(choice)
            self.edge(source, target, partial(_chooses, choose, choice), label=label)
        return self

    def entry(self, name: str) -> Self:
        """Say at which node the graph begins."""
        self._entries.append(name)
        return self

    def exit(self, name: str) -> Self:
        """Say that the graph ends after this node. It may have several exits."""
        self._exits.append(name)
        return self

    def build(self) -> Graph[Env, E | GraphError, S]:
        """The graph as a workflow.

        Raises InvalidGraph, with every problem that the description has.
        """
        nodes = self._nodes.values()
        _, error, state = get_args(getattr(self, "__orig_class__", None)) or (None, None, None)
        problems = [
            *workflow_name_problems(self._name),
            *self._problems,
            *problems_of(self._draft()),
            *_refusal(lambda: check_migrations(self._name, self._version, self._migrations)),
            *_refusal(lambda: known_to(nodes, state, error, GraphError)),
        ]
        if problems:
            raise InvalidGraph(self._name, problems)
        types = known_to(nodes, state, error, GraphError)
        structure = self._structure(types)
        return Graph(
            structure,
            version=self._version,
            input_type=state or _input_of(structure.nodes[structure.entry]),
            types=types,
            migrations=self._migrations,
        )

    def _draft(self) -> Draft:
        return Draft(self._names, self._edges, self._entries, self._exits, self._max_iterations)

    def _structure(self, types: KnownTypes) -> Structure:
        nodes = {
            name: replace(
                sharing(node, types),
                edges=tuple(edge for edge in self._edges if edge.source == name),
                is_exit=name in self._exits,
            )
            for name, node in self._nodes.items()
        }
        return Structure(self._name, nodes, self._entries[0], self._max_iterations)

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
    """What a check raises, as a problem of the description."""
    try:
        check()
    except ValueError as problem:
        return [str(problem)]
    return []


def _name_of(condition: Callable[..., bool] | None) -> str:
    name = str(getattr(condition, "__name__", ""))
    return "" if name == "<lambda>" else name


def _chooses(choose: Callable[[Any], object], choice: object, state: Any) -> bool:
    return answered(choose(state), "the function that chooses") == choice


def _input_of(node: Node) -> object:
    return input_type(node.work.function) if isinstance(node.work, Call) else None
