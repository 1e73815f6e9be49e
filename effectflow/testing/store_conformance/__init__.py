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

from effectflow.checkpoint.store import CheckpointStore, ServiceStore
from effectflow.testing.store_conformance import (
    _damage,
    _due_runs,
    _finding,
    _journals,
    _leases,
    _messages,
)
from effectflow.testing.store_conformance._check import (
    HOSTILE_RUN_IDS,
    Check,
    Damage,
    MakeStore,
    checks_of,
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

JOURNAL_CHECKS: list[Check] = checks_of(CheckpointStore, _journals, _leases, _finding)
"""The checks of journals, for every `CheckpointStore`."""

SERVICE_CHECKS: list[Check] = checks_of(ServiceStore, _messages, _due_runs)
"""The checks of what workers need, for a `ServiceStore`."""

CHECKS: list[Check] = [*JOURNAL_CHECKS, *SERVICE_CHECKS]
"""The checks for a `ServiceStore`, of both parts."""

DAMAGE_CHECKS: list[Check] = checks_of(CheckpointStore, _damage)
"""The checks that need a function that damages a run: `await check(make, damage=damage)`."""
