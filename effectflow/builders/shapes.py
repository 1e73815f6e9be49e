"""The shape of any workflow as a diagram, with the position of a run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

from effectflow.builders.diagrams import Arrow, Box, Diagram, Mark
from effectflow.builders.kinds import job_progress
from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.run_info import RunStatus
from effectflow.effects.paths import StepPath
from effectflow.runs.workflow import Workflow

_MOST_BRANCHES = 12
"""An operator with more branches than this is drawn as one box."""


@runtime_checkable
class _Drawn(Protocol):
    """A workflow that knows its shape: a state graph, or a machine."""

    def diagram(self, checkpoint: Checkpoint | None = None) -> Diagram: ...


def shape_of(
    workflow: Workflow[Any, Any, Any, Any], checkpoint: Checkpoint | None = None
) -> Diagram:
    """Return the diagram of a workflow; with a checkpoint of one of its runs, where that run has been.

    Graphs, machines, lists of steps, jobs and iterations have a shape of their own. That of code is what
    a run has executed so far: without a run, it is a single box.

    Raises ValueError for the checkpoint of another workflow.
    """
    if isinstance(workflow, _Drawn):
        return workflow.diagram(checkpoint)
    definition = workflow.blueprint.definition
    if checkpoint is not None and checkpoint.workflow not in workflow.blueprint.names:
        raise ValueError(
            f"run {checkpoint.run_id!r} is of workflow {checkpoint.workflow!r}, not of {workflow.name!r}"
        )
    return _shape(definition, checkpoint)


def shape_of_run(checkpoint: Checkpoint) -> Diagram:
    """Return the diagram of a run, as far as its checkpoint tells without the code of its workflow.

    That of a graph or a machine is what it has executed so far, as that of code is.
    """
    return _shape(checkpoint.definition, checkpoint)


def _shape(definition: Definition, checkpoint: Checkpoint | None) -> Diagram:
    match definition.kind:
        case "mapreduce":
            map_step, reduce_step = definition.steps
            return _chain(_job_boxes(map_step, reduce_step, checkpoint))
        case "iterative":
            [step] = definition.steps
            found = _of_steps((step,), checkpoint)
            return Diagram(found.boxes, (*found.arrows, Arrow(step, step, "not converged")))
        case _ if definition.is_list:
            return _of_steps(definition.steps, checkpoint)
        case _ if checkpoint is None:
            return _chain([Box("code", definition.name)])
        case _:
            return _chain(_boxes_of_run(checkpoint))


def _chain(boxes: Iterable[Box]) -> Diagram:
    """Return boxes one after the other, between a start and an end."""
    # The name of a step cannot have brackets.
    all_boxes = (Box("[start]", shape="start"), *boxes, Box("[end]", shape="end"))
    arrows = (Arrow(source.key, target.key) for source, target in pairwise(all_boxes))
    return Diagram(all_boxes, tuple(arrows))


def _of_steps(steps: Iterable[str], checkpoint: Checkpoint | None) -> Diagram:
    begun = {} if checkpoint is None else checkpoint.metadata.attempts
    counts: dict[str, int] = {}
    for path in begun:
        if not StepPath(path).flow:
            name = StepPath(path).name
            counts[name] = counts.get(name, 0) + 1
    current = _current(checkpoint)
    return _chain(
        Box(
            step,
            f"{step}\n{counts[step]} times" if counts.get(step, 0) > 1 else step,
            mark="current" if step == StepPath(current).name else _visited(step in counts),
        )
        for step in steps
    )


def _job_boxes(map_step: str, reduce_step: str, checkpoint: Checkpoint | None) -> Iterator[Box]:
    progress = None if checkpoint is None else job_progress(checkpoint)
    if progress is None:
        yield Box("map", map_step)
        yield Box("reduce", reduce_step)
        return
    total = "" if progress.items_total is None else f" of {progress.items_total}"
    failed = f", {progress.items_failed} failed" if progress.items_failed else ""
    is_mapping = progress.phase == "map"
    yield Box(
        "map",
        f"{map_step}\n{progress.items_done}{total} items{failed}",
        mark="current" if is_mapping else "visited",
    )
    yield Box(
        "reduce",
        f"{reduce_step}\nround {progress.reduce_round}" if progress.reduce_round else reduce_step,
        mark="current" if progress.phase == "reduce" else _visited(progress.phase == "complete"),
    )


def _boxes_of_run(checkpoint: Checkpoint) -> Iterator[Box]:
    """Yield a box for each step and operator of the body of a run, in the order of their beginnings."""
    current = _current(checkpoint)
    done = {item.step for item in checkpoint.history}
    operators: dict[str, dict[str, list[str]]] = {}
    for path in checkpoint.metadata.attempts:
        first, operator = _beginning(path)
        operators.setdefault(operator, {}).setdefault(first, []).append(path)
    for operator, branches in operators.items():
        is_current = any(current in paths for paths in branches.values())
        if list(branches) == [operator]:
            yield Box(operator, operator, mark="current" if is_current else "visited")
        elif len(branches) > _MOST_BRANCHES:
            ended = sum(done.issuperset(paths) for paths in branches.values())
            label = f"{operator}\n{ended} of {len(branches)} branches ended"
            yield Box(operator, label, mark="current" if is_current else "visited")
        else:
            inside = tuple(
                Box(
                    branch,
                    f"[{StepPath(branch).key}] {', '.join(_names_in(branch, paths))}",
                    mark="visited" if done.issuperset(paths) else "current",
                )
                for branch, paths in branches.items()
            )
            yield Box(operator, operator, mark="visited", inside=inside)


def _beginning(path: str) -> tuple[str, str]:
    """Return the first segment of a path, and the operator or step in it."""
    if "/" not in path and "[" not in path:
        # Most paths are so, and a run may have many.
        return path, path
    first = StepPath(StepPath(path).segments[0])
    return str(first), str(first.operator)


def _names_in(branch: str, paths: Iterable[str]) -> Iterable[str]:
    return dict.fromkeys(path[len(branch) + 1 :].partition("/")[0] for path in paths)


def _current(checkpoint: Checkpoint | None) -> str:
    """Return the step that is in progress or came last; "" once the run is complete."""
    if checkpoint is None or checkpoint.status is RunStatus.COMPLETED or checkpoint.state is None:
        return ""
    return checkpoint.state.step or ""


def _visited(has_begun: bool) -> Mark:
    return "visited" if has_begun else "plain"
