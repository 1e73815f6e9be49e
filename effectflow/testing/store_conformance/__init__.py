"""Check that a store meets the requirements of effectflow.

There are three lists of checks:

- `JOURNAL_CHECKS` are for every store.
- `SERVICE_CHECKS` are for a store that workers can use, a `ServiceStore`.
- `DAMAGE_CHECKS` need a function that damages the stored data of a run.

Call each check with a function that creates a store. If your store keeps its data, the function must
create it over the same data each time, and that data must be empty at first. With pytest and anyio::

    @pytest.mark.anyio
    @pytest.mark.parametrize("check", store_conformance.JOURNAL_CHECKS, ids=str)
    async def test_my_store(check: store_conformance.Check, tmp_path: Path) -> None:
        await check(lambda: MyStore(tmp_path))

A failing check raises AssertionError, or passes on what the store raised. If the store lacks a method of
the contract, each check names it. If the store keeps a check waiting, it fails after 30 seconds for one
call, and after five minutes at the latest.
"""

from effectflow.testing.store_conformance import (
    _changes as _changes,
    _damage as _damage,
    _due_runs as _due_runs,
    _finding as _finding,
    _journals as _journals,
    _leases as _leases,
    _messages as _messages,
    _opening as _opening,
)
from effectflow.testing.store_conformance._check import (
    DAMAGE,
    HOSTILE_RUN_IDS,
    JOURNAL,
    SERVICE,
    Check,
    Damage,
    MakeStore,
)

__all__ = [
    "CHECKS",
    "DAMAGE_CHECKS",
    "HOSTILE_RUN_IDS",
    "JOURNAL_CHECKS",
    "SERVICE_CHECKS",
    "Check",
    "Damage",
    "MakeStore",
]

JOURNAL_CHECKS: list[Check] = JOURNAL.checks
"""The checks of journals, for every `CheckpointStore`."""

SERVICE_CHECKS: list[Check] = SERVICE.checks
"""The checks of what workers need, for a `ServiceStore`."""

CHECKS: list[Check] = [*JOURNAL_CHECKS, *SERVICE_CHECKS]
"""The checks for a `ServiceStore`, of both parts."""

DAMAGE_CHECKS: list[Check] = DAMAGE.checks
"""The checks that need a function that damages a run: `await check(make, damage=damage)`."""
