"""The rules that all stores share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from effectflow.checkpoint import RunStatus, RunSummary
from effectflow.stores._rules import receivers
from tests.stores.runs import SUMMARY


@dataclass(frozen=True)
class Run:
    summary: RunSummary


def nested_in(parent: str) -> Run:
    return Run(replace(SUMMARY, parent=parent, is_nested=True))


def told(runs: dict[str, Run], parent: str, run_id: str) -> list[tuple[str, str]]:
    return [(receiver, key) for receiver, _, key in receivers(parent, run_id, runs.get)]


def test_a_notice_reaches_the_runs_that_a_parent_is_nested_in() -> None:
    runs = {"inner": nested_in("middle"), "middle": nested_in("outer"), "outer": Run(SUMMARY)}

    assert told(runs, "inner", "spawned") == [
        ("inner", "spawned"),
        ("middle", "inner"),
        ("outer", "middle"),
    ]


def test_a_notice_ends_at_a_run_that_is_unknown_or_has_ended() -> None:
    runs = {
        "inner": nested_in("gone"),
        "other": nested_in("ended"),
        "ended": Run(replace(SUMMARY, status=RunStatus.COMPLETED)),
    }

    assert told(runs, "inner", "spawned") == [("inner", "spawned")]
    assert told(runs, "other", "spawned") == [("other", "spawned")]


def test_a_notice_ends_if_damage_has_made_a_run_its_own_parent() -> None:
    runs = {"a": nested_in("b"), "b": nested_in("a")}

    assert told(runs, "a", "spawned") == [("a", "spawned"), ("b", "a")]
