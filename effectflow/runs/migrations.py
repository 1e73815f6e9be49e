"""Upgrade runs of earlier versions of a workflow to its current version.

The journal stays as it was written. Each time it is read, pure functions turn what one version saved into
what the next version would have saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.values import Tree, decode_json, encode_json
from effectflow.effects.paths import StepPath, flow_of

if TYPE_CHECKING:
    from effectflow.checkpoint.entries import Entry, Started

StateMigration: TypeAlias = Callable[[Any], Any]
"""A pure function from a state that one version saved, as plain data, to that of the next version.

It gets the input and the output of a run, and the outputs of the steps that return a state, in their
saved form: an instance of a class `Order` is `{"$object": ["Order", {...}]}`. It does not get None. In
code, where it is not known which steps return a state, it gets the output of every step.
"""


@dataclass(frozen=True, slots=True)
class StepMigration:
    """A migration that also says which steps of a code workflow have changed.

    Without it, a run that has executed those steps fails to resume with DefinitionChanged.

    Attributes:
        state: upgrades saved states, as a plain function would; None to leave them.
        removes: names of steps that the next version no longer reaches. What runs of the earlier
            version recorded of them is ignored.
        renames: new names by old names.

    Example:
        >>> from effectflow.runs import StepMigration
        >>> StepMigration(removes=("notify",), renames={"charge": "pay"}).renames["charge"]
        'pay'
    """

    state: StateMigration | None = None
    removes: tuple[str, ...] = ()
    renames: Mapping[str, str] = field(default_factory=dict[str, str])


Migration: TypeAlias = StateMigration | StepMigration
"""How one version of a workflow becomes the next: see `StateMigration` and `StepMigration`."""


def check_migrations(name: str, version: str, migrations: Mapping[int, Migration]) -> None:
    """Raise ValueError unless each migration leads to the next, and the last to this version."""
    if not migrations:
        return
    if not version.isdecimal():
        raise ValueError(
            f"workflow {name!r} has migrations, so its version must be a whole number, not {version!r}"
        )
    expected = list(range(min(migrations), int(version)))
    if sorted(migrations) != expected:
        raise ValueError(
            f"workflow {name!r} of version {version} has migrations from versions {sorted(migrations)}, "
            f"but needs one from each of {expected or 'its earlier versions'}"
        )


def is_of_outermost_flow(path: str) -> bool:
    """Return whether a step belongs to the run itself, not to another step or a parallel operator."""
    return not flow_of(path)


def upgrade(
    entries: Iterable[Entry],
    definition: Definition,
    migrations: Mapping[int, Migration],
    gives_state: Callable[[str], bool] | None,
) -> tuple[Entry, ...]:
    """Return the journal that the current version of the workflow would have written. Pure.

    Entries of a version without a migration are unchanged. `gives_state` says for the path of a step
    whether the step returns a state to migrate; if it is None, all outputs are migrated.
    """
    # Imported when the first run is read, not with every workflow.
    from effectflow.checkpoint.entries import BeforeStep, Completed, Finished, Resumed, Started

    current = {
        "version": definition.version,
        "steps": definition.steps,
        "structure": definition.structure,
    }
    chain: tuple[StepMigration, ...] = ()
    upgraded: list[Entry] = []
    for entry in entries:
        changes: dict[str, object] = {}
        match entry:
            case Started():
                chain = _chain(entry.version, migrations)
                changes = {
                    **current,
                    "fingerprint": definition.fingerprint,
                    "input": _migrate(entry.input, chain, f"the input of run {entry.run_id!r}"),
                }
            case Resumed(version=str(version)):
                chain = _chain(version, migrations)
                changes = {**current}
            case BeforeStep():
                # Its digests were made of the arguments and the item before the migration.
                changes = {"arguments": None, "preview": ""}
            case Completed(step=step, output=output) if gives_state is None or gives_state(step):
                changes = {"output": _migrate(output, chain, f"the output of {step!r}")}
            case Finished(output=output):
                changes = {"output": _migrate(output, chain, "the output")}
            case _:
                pass
        if chain:
            entry = replace(cast(Any, entry), **changes, **_renamed_path(entry, chain))
        upgraded.append(entry)
    return tuple(upgraded)


def with_names(
    entries: tuple[Entry, ...], name: str, renamed_steps: Mapping[str, str]
) -> tuple[Entry, ...]:
    """Return a journal with this name of its workflow, and the new names of its declared steps. Pure."""
    started = cast("Started", entries[0])
    if started.workflow == name and renamed_steps.keys().isdisjoint(started.steps):
        return entries
    steps = tuple(renamed_steps.get(step, step) for step in started.steps)
    return (replace(started, workflow=name, steps=steps), *entries[1:])


def removed_entries(entries: Iterable[Entry], migrations: Mapping[int, Migration]) -> Iterator[int]:
    """Yield the sequence numbers of the entries of steps that a migration removes, and within them."""
    from effectflow.checkpoint.entries import Resumed, Started, Value
    from effectflow.checkpoint.order import ordered_path_of

    removed: set[str] = set()
    for sequence, entry in enumerate(entries, 1):
        match entry:
            case Started(version=version) | Resumed(version=str(version)):
                removed = {name for one in _chain(version, migrations) for name in one.removes}
            case _:
                path = entry.path if isinstance(entry, Value) else ordered_path_of(entry)
                if removed and any(
                    StepPath(part).name in removed for part in StepPath(path).segments
                ):
                    yield sequence


def _renamed_path(entry: Any, chain: tuple[StepMigration, ...]) -> dict[str, str]:
    """Return the field of an entry with the path of a step, as the entry would name that step now."""
    attribute = "step" if hasattr(entry, "step") else "path"
    path = getattr(entry, attribute, None)
    if path is None:
        return {}
    for renames in (migration.renames for migration in chain if migration.renames):
        path = "/".join(_renamed(part, renames) for part in StepPath(path).segments)
    return {attribute: path}


def _renamed(segment: str, renames: Mapping[str, str]) -> str:
    name = StepPath(segment).name
    return renames[name] + segment[len(name) :] if name in renames else segment


def migrated(
    state: Tree, version: str, migrations: Mapping[int, Migration], what: str
) -> tuple[Tree, str]:
    """Return a saved state as the newest version would have saved it, and that version.

    Without a migration from `version`, both are returned unchanged. `what` names the state in the note on
    an exception that a migration raises.
    """
    chain = _chain(version, migrations)
    return (_migrate(state, chain, what), str(max(migrations) + 1)) if chain else (state, version)


def _chain(version: str, migrations: Mapping[int, Migration]) -> tuple[StepMigration, ...]:
    """Return the migrations from a version to the current one; empty if there are none."""
    if not version.isdecimal() or int(version) not in migrations:
        return ()
    chosen = (migrations[number] for number in range(int(version), max(migrations) + 1))
    return tuple(
        each if isinstance(each, StepMigration) else StepMigration(each) for each in chosen
    )


def _migrate(state: Tree, chain: tuple[StepMigration, ...], what: str) -> Tree:
    if not chain or state is None:
        return state
    # A migration may change its argument in place, and each part is one of its own.
    migrated: Any = decode_json(encode_json(state))
    try:
        for migration in chain:
            if migration.state is not None:
                migrated = migration.state(migrated)
        if decode_json(encode_json(migrated)) != migrated:
            raise TypeError(
                f"a migration must return plain data in its saved form, not {migrated!r}"
            )
    except Exception as error:
        error.add_note(f"in a migration of {what}; the store is unchanged")
        raise
    return migrated
