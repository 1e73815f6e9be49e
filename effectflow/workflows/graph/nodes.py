"""Make nodes of what authors give for them: functions, steps, workflows, branches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from effectflow.checkpoint.durable_step import StepDefinition
from effectflow.checkpoint.step import Step, effect_types
from effectflow.checkpoint.values import KnownTypes
from effectflow.effects import Effect
from effectflow.workflows.checks import function_problems, step_name_problems
from effectflow.workflows.graph.graph import Graph
from effectflow.workflows.graph.structure import Call, Nested, Node, Parallel
from effectflow.workflows.linear import input_type
from effectflow.workflows.machine.state_machine import StateMachine
from effectflow.workflows.workflow import Workflow

__all__ = [
    "known_to",
    "node_of",
    "node_problems",
    "parallel_node",
    "parallel_problems",
    "sharing",
]


_STATE_OF = {
    "machine": ("a Machine", "lambda machine: machine.current"),
    "mapreduce": ("a JobResult", "lambda result: ..."),
    "iterative": ("an IterativeResult", "lambda result: result.value"),
}
"""By kind of workflow: what it yields instead of its state, and what makes a state of that."""


def node_problems(name: str, body: object) -> Iterator[str]:
    """Why this cannot be a node, which yields the next state, if it cannot."""
    yield from _problems_of_body(name, body)
    if isinstance(body, Workflow) and body.kind in _STATE_OF:
        result, state_of = _STATE_OF[body.kind]
        yield (
            f"node {name!r} is given the workflow {body.name!r}, which yields {result} and not its "
            f"state: give it `lambda state: workflow.body(state).map({state_of})`"
        )


def _branch_problems(name: str, body: object) -> Iterator[str]:
    """Why this cannot be a branch, which may yield whatever a step can save, if it cannot."""
    yield from _problems_of_body(name, body)
    if isinstance(body, StateMachine):
        yield (
            f"branch {name!r} is given the state machine {body.name!r}, which yields a Machine, and a "
            "step cannot save that: give it `lambda state: machine.body(state).map(lambda machine: "
            "machine.current)`"
        )


def _problems_of_body(name: str, body: object) -> Iterator[str]:
    yield from step_name_problems(name)
    if not isinstance(body, Workflow | Step):
        takes = "a function from a state to an effect, or a workflow that is built"
        yield from function_problems(body, f"node {name!r}", takes)


def node_of(name: str, body: object) -> Node:
    """A node that calls a function, or runs a workflow; of those that `node_problems` lets pass."""
    if isinstance(body, Workflow):
        return _workflow_node(name, cast("Workflow[Any, Any, Any, Any]", body))
    if isinstance(body, Step):
        step = cast("Step[[Any], Any, Any, Any]", body)
        node = Node(replace(step.definition, name=name), Call(step.function))
        return sharing(node, known_to([node], input_type(step.function)))
    function = cast("Callable[[Any], Effect[Any, Any, Any]]", body)
    types = KnownTypes.of(*effect_types(function), input_type(function))
    return Node(StepDefinition(name, types), Call(function))


def _workflow_node(name: str, workflow: Workflow[Any, Any, Any, Any]) -> Node:
    blueprint = workflow.blueprint
    structure = workflow.structure if isinstance(workflow, Graph) else None
    definition = StepDefinition(name, blueprint.output_types)
    work = Nested(workflow.body, workflow.definition, structure, blueprint.gives_state)
    return Node(definition, work)


def parallel_problems(name: str, branches: Mapping[str, object], merge: object) -> Iterator[str]:
    """Why this cannot be a node whose branches run side by side, if it cannot."""
    yield from step_name_problems(name)
    if not branches:
        yield f"node {name!r} has no branches to run side by side"
    for branch, body in branches.items():
        yield from _branch_problems(branch, body)
    if not callable(merge):
        yield (
            f"node {name!r} is given {merge!r} to merge with: it takes a function of the state and of "
            "what the branches gave"
        )


def parallel_node(
    name: str, branches: Mapping[str, object], merge: Callable[[Any, Mapping[str, Any]], Any]
) -> Node:
    """A node that runs branches side by side; of those that `parallel_problems` lets pass."""
    made = tuple(node_of(branch, body) for branch, body in branches.items())
    return Node(StepDefinition(name, known_to(made)), Parallel(made, merge))


def known_to(nodes: Iterable[Node], *annotations: object) -> KnownTypes:
    """The classes that any of these nodes knows, and those of the annotations.

    Raises ValueError if two different ones have one name.
    """
    known = [node.definition.types for node in nodes]
    classes = [
        kind for types in known for kind in (*types.classes.values(), *types.errors.values())
    ]
    return KnownTypes.of(*annotations, *classes)


def sharing(node: Node, types: KnownTypes) -> Node:
    """The node, and its branches, as part of a graph in which these classes are known."""
    definition = replace(node.definition, types=types)
    if not isinstance(node.work, Parallel):
        return replace(node, definition=definition)
    branches = tuple(sharing(branch, types) for branch in node.work.branches)
    return replace(node, definition=definition, work=replace(node.work, branches=branches))
