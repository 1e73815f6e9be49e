"""The rules that all stores share, as far as the conformance suite cannot meet them."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from effectflow.checkpoint.errors import CorruptCheckpoint, RunBusy
from effectflow.checkpoint.lease import Lease, Owner
from effectflow.checkpoint.run_info import DUE_SINCE, RunQuery, RunStatus
from effectflow.checkpoint.store import CANCEL
from effectflow.stores.base import (
    check_free,
    due_if_unseen,
    is_current,
    lease_from_json,
    summary_from_json,
    to_json,
    woken,
)
from tests.stores.runs import SUMMARY

LEASE = Lease("r", str(Owner(1, "elsewhere", "1", "1")), 7, 100.0)


def test_a_lease_is_current_while_it_is_renewed_and_not_once_another_owner_has_its_token() -> None:
    """A store may issue a fencing token twice, if it has lost the newest one."""
    assert is_current(LEASE, replace(LEASE, expires_at=200.0))
    assert not is_current(LEASE, replace(LEASE, owner="another"))
    assert not is_current(LEASE, replace(LEASE, fence=8))
    assert not is_current(LEASE, None)


def test_a_held_lease_is_free_for_its_owner() -> None:
    check_free(LEASE, now=99.0, claimant=LEASE.owner)
    check_free(LEASE, now=100.0)
    with pytest.raises(RunBusy):
        check_free(LEASE, now=99.0)


def test_a_message_makes_a_run_due_also_by_a_clock_that_is_behind() -> None:
    suspended = replace(SUMMARY, status=RunStatus.SUSPENDED)
    now = 10 * DUE_SINCE

    assert woken(CANCEL, suspended, now=now).due_at == now - DUE_SINCE
    assert woken(CANCEL, replace(suspended, due_at=1.0), now=now).due_at == 1.0
    # Never before the epoch.
    assert due_if_unseen(suspended, 1, left=[(2, "signal:go")], now=60.0).due_at == 0.0


@pytest.mark.parametrize("text", ["", "[]", "{}", "5", '{"workflow": 1}', "\x00", "null"])
def test_damaged_texts_are_corrupt_checkpoints(text: str) -> None:
    assert summary_from_json(to_json(SUMMARY), "r") == SUMMARY
    assert lease_from_json(to_json(LEASE), "r") == LEASE
    for read in (summary_from_json, lease_from_json):
        with pytest.raises(CorruptCheckpoint, match="'r'"):
            read(text, "r")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"statuses": "failed"}, "statuses takes a frozenset"),
        ({"limit": -1}, "limit must be an int >= 0"),
        ({"updated_since": datetime(2026, 1, 1, tzinfo=UTC)}, "write .timestamp()"),
    ],
)
def test_a_query_that_stores_would_understand_differently_is_rejected(
    wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(said)):
        RunQuery(**wrong)
