"""What a page shows of the chosen step of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from effectflow.builders.kinds import view_of
from effectflow.checkpoint.entries import (
    BeforeStep,
    ChildEnded,
    Completed,
    Entry,
    ErrorRecord,
    Signalled,
)
from effectflow.checkpoint.order import ordered_path_of
from effectflow.checkpoint.step import StepInfo
from effectflow.checkpoint.values import Tree
from effectflow.observe.explanation import Explanation
from effectflow.observe.operations import Operation
from effectflow.observe.recorded_run import RecordedRun
from effectflow.ui.actions.settling import COMPLETE_STEP, steps_to_settle
from effectflow.ui.steps import shown_state


@dataclass(frozen=True, slots=True)
class StepPanel:
    """A step or a wait of a run, and what its entries tell.

    Attributes:
        operation: the step or the wait.
        state: its state, in words.
        place: where it is, in the words of the builder of the workflow.
        began, ended: the numbers of its first and of its newest entry.
        arguments: the beginning of its arguments, as text; "" if there are none.
        has_output: whether it has given an output: a step, a signal or a child.
        output: the output.
        error: the error of its newest attempt, or of its newest one that failed.
        is_at_most_once: whether it is not executed again silently.
        idempotency_key: what it sends to others; "" for what is no step.
        can_be_settled: whether people may give its outcome.
    """

    operation: Operation
    state: str
    place: str
    began: int
    ended: int
    arguments: str
    has_output: bool
    output: Tree
    error: ErrorRecord | None
    is_at_most_once: bool
    idempotency_key: str
    can_be_settled: bool

    @property
    def zoom(self) -> dict[str, float | None]:
        """The time around it, as the query of a link."""
        began, ended = self.operation.began, self.operation.newest.ended
        around = 1.0 if ended is None else max((ended - began) / 4, 0.001)
        return {"from": began - around, "to": None if ended is None else ended + around}


def panel_of(run: RecordedRun, path: str, why: Explanation) -> StepPanel | None:
    """Return what there is to show of a step of a run that is where it is; None without such a step."""
    operation = next((one for one in run.operations if one.path == path), None)
    if operation is None:
        return None
    entries = _entries_of(run.entries, path)
    begun = [one for _, one in entries if isinstance(one, BeforeStep)]
    outputs = [_output_of(one) for _, one in entries if isinstance(one, _WITH_OUTPUT)]
    errors = [one.error for one in operation.attempts if one.error is not None]
    is_step = operation.kind == "step"
    return StepPanel(
        operation,
        shown_state(operation, is_held=why.is_held),
        view_of(run.checkpoint.kind).place(path),
        entries[0][0],
        entries[-1][0],
        begun[-1].shown if begun else "",
        bool(outputs) and operation.state == "completed",
        outputs[-1] if outputs else None,
        errors[-1] if errors else None,
        bool(begun) and begun[-1].at_most_once,
        StepInfo(run.run_id, path, 1).idempotency_key if is_step else "",
        path in steps_to_settle(why) and not COMPLETE_STEP.why_not(why),
    )


_WITH_OUTPUT = (Completed, Signalled, ChildEnded)


def _output_of(entry: Completed | Signalled | ChildEnded) -> Tree:
    return entry.value if isinstance(entry, Signalled) else entry.output


def _entries_of(entries: Sequence[Entry], path: str) -> list[tuple[int, Entry]]:
    """Return the entries of an operation with their numbers."""
    return [
        (number, entry) for number, entry in enumerate(entries, 1) if ordered_path_of(entry) == path
    ]
