"""`effectflow graph`: the shape of a workflow, with the position of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import anyio
import typer

from effectflow.builders.diagrams import Box, to_mermaid
from effectflow.builders.pictures import to_svg
from effectflow.builders.shapes import shape_of
from effectflow.checkpoint import Checkpoint, fold
from effectflow.checkpoint.journal_reader import read_existing
from effectflow.checkpoint.values import Tree
from effectflow.cli.access import Access, CodeOption
from effectflow.cli.app_loader import find_workflow, workflow_named
from effectflow.cli.command import Answer, command
from effectflow.cli.options import BadUse
from effectflow.cli.timeline import write_picture
from effectflow.service.environment import AnyWorkflow


@command(CodeOption)
def graph(
    access: Access,
    workflow: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:WORKFLOW", help="Module and workflow; with --app, the workflow's name."
        ),
    ],
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN_ID", help="Mark where this run has been.")
    ] = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Write it as a picture instead.")
    ] = None,
) -> Answer:
    """Draw the shape of a workflow as a Mermaid flowchart, which many Markdown viewers show."""
    found = (
        find_workflow(workflow)
        if access.app is None
        else workflow_named(workflow, access.app).workflow
    )
    checkpoint = None if run is None else _checkpoint_of(access, run, found)
    try:
        diagram = shape_of(found, checkpoint)
    except ValueError as error:
        raise BadUse(str(error)) from error
    tree = {
        "boxes": [_box_tree(box) for box in diagram.boxes],
        "arrows": [
            {"source": one.source, "target": one.target, "label": one.label or None}
            for one in diagram.arrows
        ],
    }
    if svg is not None:
        write_picture(svg, to_svg(diagram))
        return Answer(tree, [f"The picture is in {svg}."])
    return Answer(tree, to_mermaid(diagram).splitlines())


def _checkpoint_of(access: Access, run_id: str, workflow: AnyWorkflow) -> Checkpoint:
    access.check_store()

    async def read() -> Checkpoint:
        async with access.store as store:
            entries = await read_existing(store, run_id, access.seal)
        known = fold(entries, run_id)
        if known.workflow not in workflow.blueprint.names:
            return known
        return fold(workflow.blueprint.upgraded(entries), run_id)

    return anyio.run(read)


def _box_tree(box: Box) -> dict[str, Tree]:
    return {
        "key": box.key,
        "label": box.label,
        "shape": box.shape,
        "mark": box.mark,
        "inside": [_box_tree(inner) for inner in box.inside],
    }
