"""`Blueprint`: everything that is needed to run a workflow. Every builder makes one.

And what builders read from the functions that they are given.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.errors import NotSerializable
from effectflow.checkpoint.values import KnownTypes, Tree, check_savable, mismatch_of, to_tree
from effectflow.checkpoint.values.exceptions import importable_name
from effectflow.effects import Effect
from effectflow.runs.migrations import Migration, removed_entries, upgrade, with_names

if TYPE_CHECKING:
    from effectflow.checkpoint.entries import Entry


def _defining_module() -> str:
    """Return the importable name of the module outside of this package that is calling, or ""."""
    frame, name = inspect.currentframe(), __name__
    while frame is not None and name.startswith(("effectflow.runs", "effectflow.builders")):
        frame, name = frame.f_back, str(frame.f_globals.get("__name__", ""))
    return importable_name(name)


def unchanged(value: Any) -> Any:
    """Return the value itself."""
    return value


KEPT: Any = object()
"""Given as the input of a fork, it keeps the input of the other run."""


def former_names(name: str, aliases: Sequence[str]) -> tuple[str, ...]:
    """Return the former names of a workflow. Raise TypeError for anything but a list of them."""
    if isinstance(aliases, str):
        raise TypeError(f"aliases of workflow {name!r} takes a list of names, not {aliases!r}")
    return tuple(one for one in aliases if one != name)


class Wrapped(NamedTuple):
    """What a workflow yields that is not simply the next state: `output` in words, `state_of` as code."""

    output: str
    state_of: str


@dataclass(frozen=True)
class Blueprint:
    """Everything that is needed to run a workflow, common to all builders.

    Attributes:
        definition: what a resume compares.
        body: returns the effect to run for an input.
        input_type: the annotation of the input, or None.
        input_types: the classes that may occur in inputs.
        output_types: the classes that may occur in outputs and errors.
        output_type: the annotation of the output, or None.
        migrations: for each earlier version, the migration to the next one.
        gives_state: returns for the path of a step whether the step returns a state to migrate; None for
            code, whose outputs are all migrated.
        module: the name of the module that defines the workflow; "" if it cannot be imported.
        environment_types: returns the environments that its functions declare. Names that follow in the
            module exist when it is called.
        save_input: returns what is saved of an input that is given to the workflow.
        read_output: returns what the workflow yields, of what the body yields.
        yields: what that is, if it is not a state, as a graph needs one.
        aliases: the former names of the workflow. Runs with one of them are its runs.
        renamed_steps: the names of declared steps, by their former names.
    """

    definition: Definition
    body: Callable[[Any], Effect[Any, Any, Any]]
    input_type: object
    input_types: KnownTypes
    output_types: KnownTypes
    output_type: object = None
    migrations: Mapping[int, Migration] = field(default_factory=dict[int, Any])
    gives_state: Callable[[str], bool] | None = None
    module: str = field(default_factory=_defining_module)
    environment_types: Callable[[], Sequence[object]] = tuple
    save_input: Callable[[Any], Any] = unchanged
    read_output: Callable[[Any], Any] = unchanged
    yields: Wrapped | None = None
    aliases: tuple[str, ...] = ()
    renamed_steps: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which its runs are recorded: its own, and the former ones."""
        return self.definition.name, *self.aliases

    def continues(self, version: str) -> bool:
        """Return whether it continues runs of this version: of its own, or of one with a migration."""
        migrated = version.isdecimal() and int(version) in self.migrations
        return migrated or version == self.definition.version

    def saved_by(self, checkpoints: Checkpoints) -> Blueprint:
        """Return the blueprint with the codecs and the encryption of these checkpoints."""
        if checkpoints.value_options is self.output_types.options:
            return self
        inputs, outputs = map(checkpoints.known, (self.input_types, self.output_types))
        return replace(self, input_types=inputs, output_types=outputs)

    def check_types(self, input: object) -> None:
        """Raise NotSerializable for another input than declared, or for outputs that cannot be saved."""
        check_savable(self.output_type, self.output_types, path="output")
        self._check_input(input)

    def _check_input(self, input: object) -> None:
        mismatch = mismatch_of(input, self.input_type)
        if mismatch is not None:
            way_out = "Pass a value of that type, or correct the annotation of the input"
            raise NotSerializable(f"input: ${mismatch[0]}", f"{mismatch[1]}. {way_out}")

    def encode_input(self, input: object) -> Tree:
        """Return an input in its saved form. Raise NotSerializable if it cannot be saved."""
        try:
            return to_tree(input, path="input: $", types=self.input_types)
        except NotSerializable:
            # Most often, the cause is that it is not what the workflow declares.
            self._check_input(input)
            raise

    def removed(self, entries: tuple[Entry, ...]) -> tuple[int, ...]:
        """Return the sequence numbers of entries of steps that migrations remove."""
        return tuple(removed_entries(entries, self.migrations)) if self.migrations else ()

    def upgraded(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Return a journal as the current version of the workflow would have written it.

        The paths of renamed steps stay: a replay finds them by `was`.
        """
        if self.migrations:
            entries = upgrade(entries, self.definition, self.migrations, self.gives_state)
        return with_names(entries, self.definition.name, self.renamed_steps)
