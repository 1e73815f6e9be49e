"""All that is needed to run a workflow, whichever way it was composed."""

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
    """All that is needed to run a workflow.

    Attributes:
        define: makes the definition, which a resume compares. It is asked for when it is first
            needed, since a function's code may name steps that are defined after it.
        body: from an input to the effect to run.
        input_type: the annotation of its input, or None.
        input_types: the classes that inputs may be made of.
        output_types: those that outputs may be made of, and what it may fail with.
        migrations: from what each earlier version saved to what the next one saves.
        gives_state: whether what the step at a path gives is a state, which migrations are of; None for
            code, whose steps give anything, so that migrations are of all of them.
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
        """A journal as the workflow would have written it as it is now."""
        if not self.migrations:
            return entries
        from effectflow.workflows.migrations import upgrade

        return upgrade(entries, self.definition, self.migrations, self.gives_state)
