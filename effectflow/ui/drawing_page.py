"""The drawing of a run: its graph, machine, job or steps, with the position and the chosen step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from starlette.requests import Request

from effectflow.builders.diagrams import Arrow, Box, Diagram
from effectflow.builders.layout import layout_of
from effectflow.builders.shapes import shape_of, shape_of_run
from effectflow.checkpoint.checkpoint import fold
from effectflow.checkpoint.errors import CheckpointError
from effectflow.effects.paths import StepPath, is_within
from effectflow.observe.operations import Operation
from effectflow.observe.recorded_run import RecordedRun
from effectflow.ui.run_header import page_of_run, read_run
from effectflow.ui.site import Page, Site

MOST_BOXES = 100
"""A drawing with more boxes has only the first ones, and those around the position."""


async def show_drawing(site: Site, request: Request) -> Page:
    """Show the drawing of a run, and mark the step that `step` names."""
    run = await read_run(site, request)
    step = request.query_params.get("step", "")
    diagram, note = drawing_of(site, run.recorded)
    steps = steps_by_box(run.recorded.operations)
    keys = set(_keys_of(diagram.boxes))
    chosen = next((one for one in _names_of(step) if one in keys), "") if step else ""
    whole = len(diagram.boxes)
    layout = layout_of(_shortened(diagram, chosen))
    arrows = [(one, _step_of_arrow(one.arrow, steps)) for one in layout.arrows]
    values = {
        "picture": layout,
        "arrows": arrows,
        "steps": steps,
        "chosen": chosen,
        "step": step,
        "note": note,
        "is_shortened": whole > MOST_BOXES,
    }
    return page_of_run(run, "drawing.html", values)


def drawing_of(site: Site, run: RecordedRun) -> tuple[Diagram, str]:
    """Return the diagram of a run, and why it is only what its journal tells; "" if it is more."""
    name, problem = run.checkpoint.workflow, ""
    workflow = None if site.app is None else site.app.recorded.get(name)
    if site.app is None:
        problem = "This is what its journal alone tells. With --app, its workflow is drawn."
    elif workflow is None:
        problem = f"The App has no workflow {name!r}: this is what its journal alone tells."
    else:
        try:
            entries = workflow.blueprint.upgraded(run.entries)
            known = run.checkpoint if entries is run.entries else fold(entries, run.run_id)
            return shape_of(workflow, known), ""
        except (CheckpointError, ValueError) as error:
            problem = f"The workflow of the App does not fit this run: {error}"
        except (Exception, SystemExit) as error:
            # A migration is code of its author.
            problem = f"A migration of this run raises {type(error).__name__}: {error}"
    return shape_of_run(run.checkpoint), problem


def steps_by_box(operations: Iterable[Operation]) -> dict[str, str]:
    """Return for the key of each box that may be drawn the path of its newest step."""
    steps: dict[str, str] = {}
    for one in operations:
        for name in _names_of(one.path):
            # A box leads to the newest step with its name, not to one within that.
            if not is_within(one.path, steps.get(name, "/")):
                steps[name] = one.path
    return steps


def _names_of(path: str) -> Iterator[str]:
    """Yield the keys that the box of a step may have: its names, and the operator that it is in."""
    if "/" not in path and "[" not in path:
        yield path
        if "#" in path:
            yield path.partition("#")[0]
        return
    segments = [StepPath(one) for one in StepPath(path).segments]
    yield str(segments[0])
    yield str(segments[0].operator)
    # A branch of a node has the name of its step.
    yield "/".join(one.name for one in segments if one.key is None)


def _keys_of(boxes: Iterable[Box]) -> Iterator[str]:
    for box in boxes:
        yield box.key
        yield from _keys_of(box.inside)


def _step_of_arrow(arrow: Arrow, steps: Mapping[str, str]) -> str:
    """Return the newest step of a transition, whose name begins the label of its arrow."""
    words = arrow.label.split(" ")
    beginnings = (" ".join(words[:count]) for count in range(len(words), 0, -1))
    return next((steps[name] for name in beginnings if name in steps), "")


def _shortened(diagram: Diagram, chosen: str) -> Diagram:
    """Return a diagram with its first boxes, and those around what is chosen, current or at the end."""
    boxes = diagram.boxes
    if len(boxes) <= MOST_BOXES:
        return diagram
    places = [number for number, box in enumerate(boxes) if box.key == chosen]
    places += [number for number, box in enumerate(boxes) if box.mark == "current"]
    middle = min((places or [len(boxes)])[0], len(boxes) - MOST_BOXES // 4)
    near = range(max(middle - MOST_BOXES // 2, 0), min(middle + MOST_BOXES // 4, len(boxes)))
    kept = sorted({*range(MOST_BOXES // 4), *near})
    shown: list[Box] = [boxes[kept[0]]]
    gaps: list[Arrow] = []
    for before, after in pairwise(kept):
        if after > before + 1:
            gap = Box(f"[{before}]", f"... {after - before - 1:,} more ...")
            shown.append(gap)
            gaps += [Arrow(boxes[before].key, gap.key), Arrow(gap.key, boxes[after].key)]
        shown.append(boxes[after])
    keys = {box.key for box in shown}
    arrows = [one for one in diagram.arrows if one.source in keys and one.target in keys]
    return Diagram(tuple(shown), (*arrows, *gaps))
