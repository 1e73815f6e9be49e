"""Check that a store meets the requirements of effectflow.

Call each check with a function that creates a store. If your store keeps its data, the function must
create it over the same data each time, and that data must be empty at first. With pytest and anyio::

    @pytest.mark.anyio
    @pytest.mark.parametrize("check", store_conformance.CHECKS, ids=lambda check: check.__name__)
    async def test_my_store(check: store_conformance.Check, tmp_path: Path) -> None:
        await check(lambda: MyStore(tmp_path))

A failing check raises AssertionError, or passes on what the store raised. If the store keeps it waiting,
it fails after 30 seconds for one call, and after five minutes at the latest.
"""

from effectflow.testing.store_conformance import _due_runs, _journals, _mailboxes, _runs
from effectflow.testing.store_conformance._check import Check, MakeStore, checks_of
from effectflow.testing.store_conformance._runs import HOSTILE_RUN_IDS

__all__ = ["CHECKS", "HOSTILE_RUN_IDS", "Check", "MakeStore"]

CHECKS: list[Check] = [
    *checks_of(_journals),
    *checks_of(_runs),
    *checks_of(_mailboxes),
    *checks_of(_due_runs),
]
"""All checks."""
