"""Runs of an earlier version of a workflow, brought to the version that there is now.

The journal stays as it was written. What is read of it is upgraded each time, by pure functions from
what one version saved to what the next one would have saved.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from effectflow.checkpoint.definition import Definition
from effectflow.checkpoint.entries import BeforeStep, Completed, Entry, Finished, Resumed, Started
from effectflow.effects.paths import flow_of
from effectflow.checkpoint.values import Tree, decode_json, encode_json

__all__ = ["Migration", "check_migrations", "is_of_outermost_flow", "migrated", "upgrade"]

Migration: TypeAlias = Callable[[Any], Any]
"""From a state that one version saved, as plain data, to that of the next version.

It is given the input and the output of a run, and the outputs of steps that give a state, but for those
that are None, in the form in which they are saved: an instance of a class `Order` is
`{"$object": ["Order", {...}]}`. Of code, where nothing tells which steps give a state, it is given what
every one gave.
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
            f"workflow {name!r} of version {version} has migrations from {sorted(migrations)}; "
            f"to lead from one version to the next they must be from {expected or 'earlier versions'}"
        )


def is_of_outermost_flow(path: str) -> bool:
    """Whether a step is one of the run itself, and not within another step or a parallel operator."""
    return not flow_of(path)


def upgrade(
    entries: Iterable[Entry],
    definition: Definition,
    migrations: Mapping[int, Migration],
    gives_state: Callable[[str], bool] | None = None,
) -> tuple[Entry, ...]:
    """The journal that the workflow would have written as it is now. Pure.

    Entries of a version from which no migration leads stay as they are. `gives_state` says of a path
    whether what that step gives is a state, which migrations are of; all are if it is None.
    """
    chain: tuple[Migration, ...] = ()
    upgraded: list[Entry] = []
    for entry in entries:
        match entry:
            case Started():
                chain = _chain(entry.version, migrations)
                entry = _upgrade_beginning(entry, definition, chain)
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
                # The digest is of arguments as they were.
                entry = replace(entry, arguments=None)
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
    """A state that a version saved, as the newest one that migrations lead to would have saved it.

    Gives that version as well; `what` says what it is the state of, for notes on what a migration raises.
    """
    chain = _chain(version, migrations)
    return (_migrate(state, chain, what), str(max(migrations) + 1)) if chain else (state, version)


def _upgrade_beginning(
    started: Started, definition: Definition, chain: tuple[Migration, ...]
) -> Started:
    if not chain:
        return started
    return replace(
        started,
        version=definition.version,
        fingerprint=definition.fingerprint,
        steps=definition.steps,
        structure=definition.structure,
        input=_migrate(started.input, chain, f"the input of run {started.run_id!r}"),
    )


def _chain(version: str, migrations: Mapping[int, Migration]) -> tuple[Migration, ...]:
    """The migrations that lead on from a version; none if it has none."""
    if not version.isdecimal() or int(version) not in migrations:
        return ()
    return tuple(migrations[number] for number in range(int(version), max(migrations) + 1))


def _migrate(state: Tree, chain: tuple[Migration, ...], what: str) -> Tree:
    if not chain or state is None:
        return state
    # A migration may change what it is given in place.
    migrated: Any = copy.deepcopy(state)
    try:
        for migration in chain:
            migrated = migration(migrated)
        if decode_json(encode_json(migrated)) != migrated:
            raise TypeError(f"a migration has to give plain data, as it is saved, not {migrated!r}")
    except Exception as error:
        error.add_note(f"in a migration of {what}; nothing was changed in the store")
        raise
    return migrated
