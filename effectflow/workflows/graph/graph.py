"""`Graph`: a built graph, which is a workflow that can be drawn."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Generic, TypeVar

from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.checkpoints import HasCheckpoints
from effectflow.checkpoint.values import KnownTypes
from effectflow.workflows import drawing
from effectflow.workflows.blueprint import Blueprint
from effectflow.workflows.graph.migrating import gives_state
from effectflow.workflows.graph.picture import picture
from effectflow.workflows.graph.progress import GraphProgress, next_step, progress_of
from effectflow.workflows.graph.running import walk
from effectflow.workflows.graph.structure import Structure, definition_of
from effectflow.workflows.migrating import Migration
from effectflow.workflows.workflow import Workflow

__all__ = ["Graph"]

Env = TypeVar("Env", bound=HasCheckpoints, contravariant=True)
E = TypeVar("E", covariant=True)
S = TypeVar("S")


class Graph(Workflow[Env, E, S, S], Generic[Env, E, S]):
    """A workflow that leads a state of type `S` from node to node. `StateGraph.build` makes one.

    Attributes:
        structure: its nodes and edges.
    """

    def __init__(
        self,
        structure: Structure,
        *,
        version: str,
        input_type: object,
        types: KnownTypes,
        migrations: Mapping[int, Migration],
    ) -> None:
        self.structure = structure
        definition = definition_of(structure, version)
        super().__init__(
            Blueprint(
                define=lambda: definition,
                body=partial(walk, structure),
                input_type=input_type,
                input_types=types,
                output_types=types,
                migrations=migrations,
                gives_state=partial(gives_state, structure),
                following=partial(next_step, structure),
            )
        )

    def progress(self, checkpoint: Checkpoint) -> GraphProgress:
        """Where a run of this graph stands, and how often it has visited each node. Pure.

        Raises ValueError for the checkpoint of another workflow.
        """
        if checkpoint.workflow != self.name:
            raise ValueError(
                f"run {checkpoint.run_id!r} is of workflow {checkpoint.workflow!r}, not of {self.name!r}"
            )
        return progress_of(self.structure, checkpoint)

    def to_mermaid(self, checkpoint: Checkpoint | None = None) -> str:
        """The graph as a Mermaid flowchart.

        With a checkpoint of one of its runs, nodes that were visited are coloured and have the number
        of their visits, and the one at which the run stands stands out. Raises ValueError for the
        checkpoint of another workflow.
        """
        return drawing.to_mermaid(self._picture(checkpoint))

    def to_dot(self, checkpoint: Checkpoint | None = None) -> str:
        """The graph in DOT, the language of Graphviz; otherwise as `to_mermaid`."""
        return drawing.to_dot(self._picture(checkpoint))

    def _picture(self, checkpoint: Checkpoint | None) -> drawing.Drawing:
        return picture(self.structure, None if checkpoint is None else self.progress(checkpoint))

    def __repr__(self) -> str:
        return f"<Graph {self.name!r} version {self.version!r}>"
