"""`Graph`: a graph that is built: a workflow with diagrams."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Generic, TypeVar

from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.checkpoints import HasCheckpoints
from effectflow.checkpoint.values import KnownTypes
from effectflow.workflows.diagrams import Diagram, to_dot, to_mermaid
from effectflow.workflows.graph._structure import Structure, definition_of, gives_state
from effectflow.workflows.graph._visits import GraphProgress, diagram_of, progress_of
from effectflow.workflows.graph._walk import walk
from effectflow.workflows.migrations import StateMigration
from effectflow.workflows.workflow import Blueprint, Workflow

Env = TypeVar("Env", bound=HasCheckpoints, contravariant=True)
E = TypeVar("E", covariant=True)
S = TypeVar("S")


class Graph(Workflow[Env, E, S, S], Generic[Env, E, S]):
    """A workflow that takes a state of type `S` from node to node. `StateGraph.build` makes one.

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
        migrations: Mapping[int, StateMigration],
    ) -> None:
        self.structure = structure
        definition = definition_of(structure, version)
        super().__init__(
            Blueprint(
                definition,
                body=partial(walk, structure),
                input_type=input_type,
                input_types=types,
                output_types=types,
                migrations=migrations,
                gives_state=partial(gives_state, structure),
            )
        )

    def progress(self, checkpoint: Checkpoint) -> GraphProgress:
        """Return which nodes a run of this graph has visited, and where it is now. Pure.

        Raises ValueError for the checkpoint of another workflow.
        """
        if checkpoint.workflow != self.name:
            raise ValueError(
                f"run {checkpoint.run_id!r} is of workflow {checkpoint.workflow!r}, not of {self.name!r}"
            )
        return progress_of(self.structure, checkpoint)

    def to_mermaid(self, checkpoint: Checkpoint | None = None) -> str:
        """Return the graph as a Mermaid flowchart.

        With a checkpoint of one of its runs, the nodes that were visited are coloured and show the number
        of their visits, and the current node stands out. Raises ValueError for the checkpoint of another
        workflow.
        """
        return to_mermaid(self._diagram(checkpoint))

    def to_dot(self, checkpoint: Checkpoint | None = None) -> str:
        """Return the same diagram in DOT, the language of Graphviz; see `to_mermaid`."""
        return to_dot(self._diagram(checkpoint))

    def _diagram(self, checkpoint: Checkpoint | None) -> Diagram:
        return diagram_of(self.structure, None if checkpoint is None else self.progress(checkpoint))

    def __repr__(self) -> str:
        return f"<Graph {self.name!r} version {self.version!r}>"
