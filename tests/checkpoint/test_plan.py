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
    fingerprint = DEFINITION.fingerprint
    started = Started(
        "r", "import", "standard", "1", fingerprint, "url", {}, journal=1, at=1.0, steps=STEPS
    )
    return [started, BeforeStep("fetch", 1, at=2.0), Completed("fetch", "page", 0.5, 2.5), *entries]


def again(step: str) -> ResumePlan:
    """The plan to run the step again that was begun after the first."""
    return ResumePlan((step,), (step,), ("fetch",))


@pytest.mark.parametrize(
    ("entries", "plan"),
    [
        pytest.param([BeforeStep("parse", 1)], again("parse"), id="before"),
        pytest.param([], ResumePlan(("parse",), (), ("fetch",)), id="completed"),
        pytest.param(
            [BeforeStep("parse", 1), Failed("parse", ERROR, retryable=True)],
            again("parse"),
            id="failed-retryable",
        ),
        pytest.param(
            [BeforeStep("parse", 1), Failed("parse", ERROR, retryable=False)],
            ResumePlan(skip=("fetch",), recurs=("parse",)),
            id="failed-for-good",
        ),
        pytest.param(
            [BeforeStep("parse", 1), Interrupted("parse", in_progress=True)],
            again("parse"),
            id="interrupted-within-a-step",
        ),
        pytest.param(
            [Interrupted("fetch", in_progress=False)],
            ResumePlan(("parse",), (), ("fetch",)),
            id="interrupted-between-steps",
        ),
        pytest.param(
            [
                BeforeStep("parse", 1),
                Completed("parse", [], 0.1),
                BeforeStep("store", 1),
                Completed("store", None, 0.1),
            ],
            ResumePlan(skip=STEPS),
            id="all-completed",
        ),
        pytest.param(
            [Finished(RunStatus.COMPLETED, 9.0, "done")],
            ResumePlan(skip=("fetch",), is_complete=True),
            id="finished",
        ),
    ],
)
def test_where_a_resume_continues(entries: list[Entry], plan: ResumePlan) -> None:
    assert plan_resume(fold(journal(*entries), "r"), DEFINITION) == plan


def test_only_the_code_knows_which_step_comes_next_without_a_list_of_steps() -> None:
    journal = [
        Started("r", "import", "standard", "1", "", "url", {}, 1, 1.0),
        BeforeStep("fetch", 1),
    ]

    plan = plan_resume(fold(journal, "r"))

    assert plan.start == ()
    assert "Workflow.plan" in plan.reason


def test_a_run_that_has_begun_no_step_starts_with_the_first_one() -> None:
    checkpoint = fold(journal()[:1], "r")

    assert plan_resume(checkpoint) == ResumePlan(("fetch",))
    assert checkpoint.current_state == checkpoint.initial_state == "url"


def test_a_plan_for_another_definition_says_what_has_changed() -> None:
    renamed = Definition("import", "1", "standard", ("fetch", "scan", "store", "notify"))

    problem = plan_resume(fold(journal(), "r"), renamed).problem

    assert isinstance(problem, DefinitionChanged)
    assert problem.renamed == (("parse", "scan"),)
    assert problem.added == ("notify",)
    assert problem.removed == ()
    assert "'parse'" in str(problem)
    assert "'scan'" in str(problem)


@pytest.mark.parametrize(
    ("steps", "version", "said"),
    [
        (("fetch", "store"), "1", "removed"),
        (("parse", "fetch", "store"), "1", "another order"),
        (STEPS, "2", "version"),
    ],
)
def test_changes_are_named(steps: tuple[str, ...], version: str, said: str) -> None:
    changed = Definition("import", version, "standard", steps).changed_since(DEFINITION, "r")

    assert changed is not None
    assert said in str(changed)


def test_an_equal_definition_has_not_changed() -> None:
    assert Definition("import", "1", "standard", STEPS).changed_since(DEFINITION, "r") is None
