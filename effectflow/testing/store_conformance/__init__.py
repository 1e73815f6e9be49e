"""What any store must do, as checks that its tests run.

A check is an async function that is given a function which makes the store, yet to be entered. A store
that outlives its closing must be made over the same data each time; each check wants one that is empty
at first. With pytest and anyio::

    @pytest.mark.anyio
    @pytest.mark.parametrize("check", store_conformance.CHECKS, ids=lambda check: check.__name__)
    async def test_my_store(check: store_conformance.Check, tmp_path: Path) -> None:
        await check(lambda: MyStore(tmp_path))

A check that is not passed raises AssertionError, or whatever the store raised.
"""

from effectflow.testing.store_conformance import (
    concurrency,
    journals,
    keeping,
    leases,
    reopening,
    runs,
)
from effectflow.testing.store_conformance.check import Check, MakeStore, checks_of
from effectflow.testing.store_conformance.runs import HOSTILE_RUN_IDS

__all__ = ["CHECKS", "HOSTILE_RUN_IDS", "Check", "MakeStore"]

CHECKS: list[Check] = [
    check
    for module in (journals, leases, runs, keeping, concurrency, reopening)
    for check in checks_of(module)
]
"""Every check, in an order that goes from the simple to the hard."""
