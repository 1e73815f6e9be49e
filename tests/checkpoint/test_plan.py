"""What a resume does, for each state that the head of a journal can be in."""

from __future__ import annotations

import pytest

from effectflow.checkpoint import (
    BeforeStep,
    Completed,
    Definition,
    DefinitionChanged,
    Entry,
    ErrorRecord,
    Failed,
    Finished,
    Interrupted,
    ResumePlan,
    RunStatus,
    Started,
    fold,
    plan_resume,
)

STEPS = ("fetch", "parse", "store")
DEFINITION = Definition("import", "1", "standard", STEPS)
ERROR = ErrorRecord("OSError", "no route")


def journal(*entries: Entry) -> list[Entry]:
    """A run that has fetched, and then these entries."""
    started = Started(
        "r", "import", "standard", "1", DEFINITION.fingerprint, STEPS, "url", {}, format=1, at=1.0
    )
    return [started, BeforeStep("fetch", 1, at=2.0), Completed("fetch", "page", 0.5, 2.5), *entries]


@pytest.mark.parametrize(
    ("entries", "plan"),
    [
        pytest.param([BeforeStep("parse", 1)], ResumePlan("parse", True, ("fetch",)), id="before"),
        pytest.param([], ResumePlan("parse", False, ("fetch",)), id="completed"),
        pytest.param(
            [BeforeStep("parse", 1), Failed("parse", ERROR, retryable=True)],
            ResumePlan("parse", True, ("fetch",)),
            id="failed-retryable",
        ),
        pytest.param(
            [BeforeStep("parse", 1), Failed("parse", ERROR, retryable=False)],
            ResumePlan("parse", False, ("fetch",)),
            id="failed-for-good",
        ),
        pytest.param(
            [BeforeStep("parse", 1), Interrupted("parse", in_progress=True)],
            ResumePlan("parse", True, ("fetch",)),
            id="interrupted-within-a-step",
        ),
        pytest.param(
            [Interrupted("fetch", in_progress=False)],
            ResumePlan("parse", False, ("fetch",)),
            id="interrupted-between-steps",
        ),
        pytest.param(
            [
                BeforeStep("parse", 1),
                Completed("parse", [], 0.1),
                BeforeStep("store", 1),
                Completed("store", None, 0.1),
            ],
            ResumePlan(None, False, STEPS),
            id="all-completed",
        ),
        pytest.param(
            [Finished(RunStatus.COMPLETED, "done")],
            ResumePlan(None, False, ("fetch",)),
            id="finished",
        ),
    ],
)
def test_where_a_resume_goes_on(entries: list[Entry], plan: ResumePlan) -> None:
    assert plan_resume(fold(journal(*entries), "r"), DEFINITION) == plan


def test_only_the_code_knows_what_follows_a_failure_that_it_handled() -> None:
    entries = [
        journal()[0],
        BeforeStep("fetch", 1),
        Failed("fetch", ERROR, retryable=True),
        Interrupted(None, in_progress=False),
    ]

    assert plan_resume(fold(entries, "r")) == ResumePlan(None, False, ())


def test_a_run_that_began_no_step_starts_with_the_first() -> None:
    checkpoint = fold(journal()[:1], "r")

    assert plan_resume(checkpoint) == ResumePlan("fetch", False, ())
    assert checkpoint.current_state == checkpoint.initial_state == "url"


def test_a_plan_for_another_definition_is_refused() -> None:
    renamed = Definition("import", "1", "standard", ("fetch", "scan", "store", "notify"))

    with pytest.raises(DefinitionChanged) as caught:
        plan_resume(fold(journal(), "r"), renamed)

    assert caught.value.renamed == (("parse", "scan"),)
    assert caught.value.added == ("notify",)
    assert caught.value.removed == ()
    assert "'parse'" in str(caught.value)
    assert "'scan'" in str(caught.value)


@pytest.mark.parametrize(
    ("steps", "version", "said"),
    [
        (("fetch", "store"), "1", "removed"),
        (("parse", "fetch", "store"), "1", "another order"),
        (STEPS, "2", "version"),
    ],
)
def test_what_changed_is_named(steps: tuple[str, ...], version: str, said: str) -> None:
    changed = Definition("import", version, "standard", steps).changed_since(DEFINITION, "r")

    assert changed is not None
    assert said in str(changed)


def test_an_equal_definition_has_not_changed() -> None:
    assert Definition("import", "1", "standard", STEPS).changed_since(DEFINITION, "r") is None
