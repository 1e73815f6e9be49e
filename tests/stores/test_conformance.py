"""Every store passes the published suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from effectflow.checkpoint.store import ServiceStore
from effectflow.stores import MemoryStore
from effectflow.testing import store_conformance
from effectflow.testing.store_conformance import Check, Damage, MakeStore
from tests.stores.damage import change_details, change_status, change_time
from tests.sweeps import in_turn

pytestmark = pytest.mark.anyio

MakeService: TypeAlias = Callable[[], ServiceStore]


@pytest.mark.parametrize("check", store_conformance.JOURNAL_CHECKS, ids=str)
async def test_journals(check: Check, make_store: MakeStore) -> None:
    await check(make_store)


@pytest.mark.parametrize("check", store_conformance.SERVICE_CHECKS, ids=str)
async def test_service(check: Check, make_service: MakeService) -> None:
    await check(make_service)


# Nothing can damage a store in memory.
@pytest.mark.parametrize(
    "make_store_named", ["sqlite full", "postgres", "redis", "file"], indirect=True
)
@pytest.mark.parametrize("damage", [change_status, change_time, change_details])
@pytest.mark.parametrize("check", store_conformance.DAMAGE_CHECKS, ids=str)
async def test_damage(check: Check, make_store: MakeStore, damage: Damage) -> None:
    await check(make_store, damage=damage)


@pytest.mark.exhaustive
@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.parametrize("check", store_conformance.CHECKS, ids=str)
async def test_memory_on_trio(check: Check) -> None:
    await check(MemoryStore)


CHECKS = {str(check): check for check in store_conformance.CHECKS}

JOURNALS_ON_TRIO = [
    "a_cancelled_append_is_not_written_after_the_next_claim",
    "a_concurrent_renewal_never_undoes_a_takeover",
    "a_lease_of_a_dead_process_is_free_at_once",
    "a_reentered_store_closes_at_the_last_exit",
    "two_hundred_runs_can_be_written_concurrently",
    "a_truncation_removes_the_last_records_and_replaces_the_summary",
    "an_append_can_replace_the_summary_and_release_the_lease",
    "concurrent_tasks_wait_until_the_store_is_open",
    "find_selects_runs_by_each_filter_and_by_all",
    "a_held_run_is_busy_until_it_is_released",
    "the_holder_of_a_run_can_delete_it",
]
"""One check for each way in which a store waits."""

SERVICES_ON_TRIO = [
    "a_message_sent_during_a_suspension_or_an_end_is_not_lost",
    "concurrent_claimants_share_a_limit",
    "watchers_see_every_kind_of_change",
]


@pytest.mark.parametrize("anyio_backend", ["trio"])
@in_turn(
    fixtures=["make_store_named"],
    name=JOURNALS_ON_TRIO,
    make_store_named=["redis", "postgres", "file", "sqlite full"],
)
async def test_journals_on_trio(name: str, make_store: MakeStore) -> None:
    await CHECKS[name](make_store)


@pytest.mark.parametrize("anyio_backend", ["trio"])
@in_turn(
    fixtures=["make_service_named"],
    name=SERVICES_ON_TRIO,
    make_service_named=["redis", "postgres", "sqlite full"],
)
async def test_services_on_trio(name: str, make_service: MakeService) -> None:
    await CHECKS[name](make_service)
