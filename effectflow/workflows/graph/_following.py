"""Which visit a resume begins with, for plans."""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import partial

from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.past import flow_of
from effectflow.checkpoint.values import Tree
from effectflow.workflows.engine import first_unrecorded
from effectflow.workflows.graph._structure import Nested, Structure, name_in_flow
from effectflow.workflows.graph._walk import Reached, pick


def following(structure: Structure, checkpoint: Checkpoint) -> str | None:
    """Return the path of the visit that a resume begins with; None at an exit. Pure.

    The edges are evaluated on the recorded states, as the resume does. So an attempt is skipped if the
    edges, which may have changed, now lead past it.
    """
    outputs = {step.step: step.output for step in checkpoint.completed_steps}
    flows = {flow_of(path) for path in checkpoint.metadata.attempts}
    return _following(structure, "", outputs, flows, checkpoint.run_id)


def _following(
    structure: Structure, flow: str, outputs: Mapping[str, Tree], flows: Set[str], run_id: str
) -> str | None:
    # The input does not matter: the entry is the same for each.
    picks = partial(pick, structure, None)
    path = first_unrecorded(picks, Reached(None), outputs, run_id, flow)
    if path is None:
        return None
    work = structure.nodes[name_in_flow(path, flow)].work
    if isinstance(work, Nested) and work.structure and path in flows:
        return _following(work.structure, path, outputs, flows, run_id) or path
    return path
