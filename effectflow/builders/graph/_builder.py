"""`StateGraph` describes a graph part by part, and builds it: a `Graph`, which is a workflow."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from itertools import chain
from typing import Any, Generic, Self, TypeAlias, TypeVar, cast, get_args

from effectflow.builders.checks import (
    function_problems,
    problems_raised,
    workflow_name_problems,
)
from effectflow.builders.diagrams import Diagram, to_mermaid
from effectflow.builders.graph._problems import (
    Draft,
    InvalidGraph,
    node_problems,
    parallel_problems,
)
from effectflow.builders.graph._structure import (
    Chosen,
    Edge,
    Function,
    Nested,
    Node,
    Parallel,
    Structure,
    definition_of,
    gives_state,
)
from effectflow.builders.graph._visits import GraphProgress, diagram_of, progress_of
from effectflow.builders.graph._walk import GraphError, walk
from effectflow.builders.steps import name_of_function, step_of
from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.checkpoints import HasCheckpoints
from effectflow.checkpoint.step import Step, StepDefinition
from effectflow.checkpoint.values import KnownTypes, union_of
from effectflow.effects import Effect
from effectflow.effects.nodes import AnyEffect
from effectflow.effects.signatures import effect_types, environment_type, input_type
from effectflow.runs.blueprint import Blueprint
from effectflow.runs.migrations import StateMigration, check_migrations
from effectflow.runs.workflow import Workflow

Env = TypeVar("Env", bound=HasCheckpoints)
E = TypeVar("E")
S = TypeVar("S")
B = TypeVar("B")
Choice = TypeVar("Choice", bound=Hashable)
Env_contra = TypeVar("Env_contra", bound=HasCheckpoints, contravariant=True)
E_co = TypeVar("E_co", covariant=True)

Body: TypeAlias = Callable[[S], Effect[Env, E, B]] | Workflow[Env, E, S, B]
"""The work of a node: a function from a state to an effect, or a workflow."""


class Graph(Workflow[Env_contra, E_co, S, S], Generic[Env_contra, E_co, S]):
    """A workflow that takes a state of type `S` from node to node. `StateGraph.build` makes one.

    Attributes:
        structure: its nodes and edges.
    """

    def __init__(self, structure: Structure, blueprint: Blueprint) -> None:
        self.structure = structure
        super().__init__(blueprint)

    def progress(self, checkpoint: Checkpoint) -> GraphProgress:
        """Return which nodes a run of this graph has visited, and where it is now. Pure.

        Raises ValueError for the checkpoint of another workflow.
        """
        self._check_is_of_this(checkpoint)
        return progress_of(self.structure, checkpoint)

    def to_mermaid(self, checkpoint: Checkpoint | None = None) -> str:
        """Return the graph as a Mermaid flowchart.

        With a checkpoint of one of its runs, the nodes that were visited are coloured and show the number
        of their visits, and the current node stands out. Raises ValueError for the checkpoint of another
        workflow.
        """
        return to_mermaid(self.diagram(checkpoint))

    def diagram(self, checkpoint: Checkpoint | None = None) -> Diagram:
        """Return the boxes and arrows that `to_mermaid` shows."""
        progress = None if checkpoint is None else self.progress(checkpoint)
        return diagram_of(self.structure, progress)

    def __repr__(self) -> str:
        return f"<Graph {self.name!r} version {self.version!r}>"


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
        >>> from effectflow import Checkpoints, pure
        >>> from effectflow.graphs import StateGraph
        >>> from effectflow.stores import MemoryStore
        >>> @dataclass(frozen=True)
        ... class Env:
        ...     checkpoints: Checkpoints
        >>> halving = (
        ...     StateGraph[Env, Never, int]("halving")
        ...     .node("halve", lambda number: pure(number // 2))
        ...     .node("done", lambda number: pure(number))
        ...     .edge("halve", "done", when=lambda number: number < 10)
        ...     .edge("halve", "halve")
        ...     .entry("halve")
        ...     .exit("done")
        ...     .build()
        ... )
        >>> halving.start(100).run_sync(Env(Checkpoints(MemoryStore())))
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
        self._bodies: dict[str, object] = {}
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
        return self._add(name, body, node_problems(name, body))

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
        return self._add(name, _Branches(dict(branches), merge), problems)

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
            label = name_of_function(when, "")
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
            choose: called once per visit, with the state; returns one of the keys of `targets`. Pure.
            targets: the node for each choice.
        """
        expected = "a function from a state to a choice"
        self._problems += function_problems(choose, f"the route out of {source!r}", expected)
        for choice, target in targets.items():
            label = choice.name if isinstance(choice, Enum) else str(choice)
            self._edges.append(Edge(source, target, Chosen(choose, choice), label))
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
        declared = get_args(getattr(self, "__orig_class__", None)) or (None, None, None)
        environment, error, state = declared
        draft = Draft(self._names, self._edges, self._entries, self._exits, self._max_iterations)
        bodies = tuple(self._bodies.values())

        def known_types() -> KnownTypes:
            annotations = chain.from_iterable(map(_annotations_of, bodies))
            return KnownTypes.of(state, error, GraphError, *annotations)

        problems = [
            *workflow_name_problems(self._name),
            *self._problems,
            *draft.problems(),
            *problems_raised(lambda: check_migrations(self._name, self._version, self._migrations)),
            *problems_raised(known_types),
        ]
        if problems:
            raise InvalidGraph(self._name, problems)
        types = known_types()
        structure = self._structure(types, state)
        entry = structure.nodes[structure.entry].work
        if state is None and isinstance(entry, Function):
            state = input_type(entry.function)
        outputs = [node.definition.output for node in structure.nodes.values() if node.is_exit]
        blueprint = Blueprint(
            definition_of(structure, self._version),
            body=partial(walk, structure),
            input_type=state,
            input_types=types,
            output_types=types,
            output_type=None if None in outputs else union_of(outputs),
            migrations=self._migrations,
            gives_state=partial(gives_state, structure),
            environment_types=lambda: [
                environment,
                *chain.from_iterable(map(_environment_types, bodies)),
            ],
        )
        return Graph(structure, blueprint)

    def _structure(self, types: KnownTypes, state: object) -> Structure:
        """Return the graph of a description without problems."""
        nodes = {
            name: replace(
                _make_node(name, body, types, state),
                edges=tuple(edge for edge in self._edges if edge.source == name),
                is_exit=name in self._exits,
            )
            for name, body in self._bodies.items()
        }
        return Structure(self._name, nodes, self._entries[0], self._max_iterations)

    def _add(self, name: str, body: object, problems: Iterable[str]) -> Self:
        self._names.append(name)
        found = list(problems)
        self._problems += found
        if not found:
            self._bodies[name] = body
        return self


@dataclass(frozen=True, slots=True)
class _Branches:
    """The body of a node with branches."""

    bodies: Mapping[str, object]
    merge: Callable[[Any, Mapping[str, Any]], Any]


def _annotations_of(body: object) -> Iterator[object]:
    """Yield the classes and annotations of the values that a body may yield, and of its errors."""
    match body:
        case _Branches(bodies):
            for branch in bodies.values():
                yield from _annotations_of(branch)
        case Workflow(blueprint=Blueprint(output_types=types)):
            yield from (*types.classes.values(), *types.errors.values())
        case Step(definition=StepDefinition(types=types), function=function):
            yield from (*types.classes.values(), *types.errors.values(), input_type(function))
        case _:
            function = cast("Callable[[Any], AnyEffect]", body)
            yield from (*effect_types(function), input_type(function))


def _environment_types(body: object) -> Iterator[object]:
    """Yield the environments that the functions of a body declare."""
    match body:
        case _Branches(bodies):
            yield from chain.from_iterable(map(_environment_types, bodies.values()))
        case Workflow(blueprint=Blueprint(environment_types=types)):
            yield from types()
        case Step(function=function):
            yield environment_type(function)
        case _:
            yield environment_type(cast("Callable[[Any], AnyEffect]", body))


def _make_node(name: str, body: object, types: KnownTypes, state: object = None) -> Node:
    """Return the node of a body without problems. Graphs share the classes that they know.

    A function without annotations yields the declared state, if it is a node.
    """
    definition = StepDefinition(name, types, output=state)
    match body:
        case _Branches(bodies, merge):
            made = tuple(_make_node(branch, each, types) for branch, each in bodies.items())
            return Node(definition, Parallel(made, merge))
        case Workflow():
            workflow = cast("Workflow[Any, Any, Any, Any]", body)
            definition = replace(definition, output=workflow.blueprint.output_type or state)
            structure = workflow.structure if isinstance(workflow, Graph) else None
            return Node(definition, Nested(workflow, structure))
        case _:
            definition, function = step_of(body, name, types, output=state)
            return Node(definition, Function(function))
