"""`Blueprint`: everything that is needed to run a workflow, common to all builders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.values import KnownTypes
from effectflow.effects import Effect

if TYPE_CHECKING:
    from effectflow.checkpoint.entries import Entry
    from effectflow.workflows.migrations import Migration

__all__ = ["Blueprint"]


@dataclass(frozen=True)
class Blueprint:
    """Everything that is needed to run a workflow.

    Attributes:
        define: returns the definition, which a resume compares. It is called when first needed.
        body: returns the effect to run for an input.
        input_type: the annotation of the input, or None.
        input_types: the classes that may occur in inputs.
        output_types: the classes that may occur in outputs and errors.
        migrations: for each earlier version, the migration to the next one.
        gives_state: tells by its path whether a step returns a state, to migrate; None for code, of
            which all outputs are migrated.
    """

    define: Callable[[], Definition]
    body: Callable[[Any], Effect[Any, Any, Any]]
    input_type: object
    input_types: KnownTypes
    output_types: KnownTypes
    migrations: Mapping[int, Migration] = field(default_factory=dict[int, Any])
    gives_state: Callable[[str], bool] | None = None

    @cached_property
    def definition(self) -> Definition:
        """The workflow's definition."""
        return self.define()

    def removed(self, entries: tuple[Entry, ...]) -> tuple[int, ...]:
        """Return the sequence numbers of entries of steps that migrations remove."""
        if not self.migrations:
            return ()
        from effectflow.workflows.migrations import removed_entries

        return tuple(removed_entries(entries, self.migrations))

    def upgraded(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Return a journal as the current version of the workflow would have written it."""
        if not self.migrations:
            return entries
        from effectflow.workflows.migrations import upgrade

        return upgrade(entries, self.definition, self.migrations, self.gives_state)
