"""Migrations of states, applied to all that machines save: attempts, whole machines, single states."""

from __future__ import annotations

from typing import Any

from effectflow.workflows.migrating import Migration

__all__ = ["over_states"]


def over_states(migration: Migration) -> Migration:
    """What does to every state in saved data what a migration does to one."""

    def migrate(saved: Any) -> Any:
        match saved:
            case {"outcome": _, "state": state}:
                return {**saved, "state": migration(state)}
            case {"outcome": "retry"}:
                return saved
            case {"initial_state": initial, "current_state": current, "history": list()}:
                return {
                    **saved,
                    "initial_state": migration(initial),
                    "current_state": migration(current),
                    "history": [_migrate_entry(entry, migration) for entry in saved["history"]],
                }
            case _:
                return migration(saved)

    return migrate


def _migrate_entry(entry: Any, migration: Migration) -> Any:
    return {**entry, "from": migration(entry["from"]), "to": migration(entry["to"])}
