"""Upgrade runs of earlier versions of a workflow to its current version.

The journal stays as it was written. Each time it is read, pure functions turn what one version saved into
what the next version would have saved.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.values import Tree, decode_json, encode_json
from effectflow.effects.paths import flow_of

if TYPE_CHECKING:
    from effectflow.checkpoint.entries import Entry

Migration: TypeAlias = Callable[[Any], Any]
"""A pure function from a state that one version saved, as plain data, to that of the next version.

It gets the input and the output of a run, and the outputs of the steps that return a state, in their
saved form: an instance of a class `Order` is `{"$object": ["Order", {...}]}`. It does not get None. In
code, where it is not known which steps return a state, it gets the output of every step.
"""


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
    gives_state: Callable[[str], bool] | None = None,
) -> tuple[Entry, ...]:
    """Return the journal that the current version of the workflow would have written. Pure.

    Entries of a version without a migration are unchanged. `gives_state` tells by its path whether a step
    returns a state, to migrate; if it is None, all outputs are migrated.
    """
    # Imported with the first run that is read, and not with every workflow.
    from effectflow.checkpoint.entries import BeforeStep, Completed, Finished, Resumed, Started

    chain: tuple[Migration, ...] = ()
    upgraded: list[Entry] = []
    for entry in entries:
        match entry:
            case Started():
                chain = _chain(entry.version, migrations)
                if chain:
                    entry = replace(
                        entry,
                        version=definition.version,
                        fingerprint=definition.fingerprint,
                        steps=definition.steps,
                        structure=definition.structure,
                        input=_migrate(entry.input, chain, f"the input of run {entry.run_id!r}"),
                    )
            case Resumed(version=str(version)):
                chain = _chain(version, migrations)
                if chain:
                    entry = replace(
                        entry,
                        version=definition.version,
                        steps=definition.steps,
                        structure=definition.structure,
                    )
            case BeforeStep() if chain:
                # Its digests are those of the arguments, and of the item, before the migration.
                entry = replace(entry, arguments=None, item=None)
            case Completed(step, output) if gives_state is None or gives_state(step):
                entry = replace(entry, output=_migrate(output, chain, f"the output of {step!r}"))
            case Finished(output=output):
                entry = replace(entry, output=_migrate(output, chain, "the output"))
            case _:
                pass
        upgraded.append(entry)
    return tuple(upgraded)


def migrated(
    state: Tree, version: str, migrations: Mapping[int, Migration], what: str
) -> tuple[Tree, str]:
    """Return a saved state as the newest version would have saved it, and that version.

    Without a migration from `version`, both are returned unchanged. `what` names the state in the note on
    an exception that a migration raises.
    """
    chain = _chain(version, migrations)
    return (_migrate(state, chain, what), str(max(migrations) + 1)) if chain else (state, version)


def _chain(version: str, migrations: Mapping[int, Migration]) -> tuple[Migration, ...]:
    """Return the migrations from a version to the current one; empty if there are none."""
    if not version.isdecimal() or int(version) not in migrations:
        return ()
    return tuple(migrations[number] for number in range(int(version), max(migrations) + 1))


def _migrate(state: Tree, chain: tuple[Migration, ...], what: str) -> Tree:
    if not chain or state is None:
        return state
    # A migration may change its argument in place.
    migrated: Any = copy.deepcopy(state)
    try:
        for migration in chain:
            migrated = migration(migrated)
        if decode_json(encode_json(migrated)) != migrated:
            raise TypeError(
                f"a migration must return plain data in its saved form, not {migrated!r}"
            )
    except Exception as error:
        error.add_note(f"in a migration of {what}; the store is unchanged")
        raise
    return migrated
