"""The runs that a run starts, nested or spawned, as its journal records them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from effectflow.checkpoint.entries import ChildEnded, ChildStarted
from effectflow.checkpoint.errors import CheckpointError, RunEnded, RunNotFound, StepInputChanged
from effectflow.checkpoint.flow import DurableFlow
from effectflow.checkpoint.recording import RecordedChild
from effectflow.checkpoint.run import Run
from effectflow.checkpoint.store import CANCEL, RunStatus, store_errors
from effectflow.effects.scope import Scope
from effectflow.workflows.blueprint import Blueprint


@dataclass(frozen=True, slots=True)
class ChildRun:
    """A nested or spawned run at a path of its outer run.

    Attributes:
        flow: the flow of the outer run that reached it.
        path: its path.
        workflow: the name of its workflow.
        run_id: its id.
        input_digest: tells whether the body reaches the same run again.
        recorded: what earlier lives of the outer run recorded of it; None if nothing.
    """

    flow: DurableFlow
    path: str
    workflow: str
    run_id: str
    input_digest: str
    recorded: RecordedChild | None

    @staticmethod
    def reach(
        flow: DurableFlow,
        scope: Scope,
        path: str,
        workflow: str,
        run_id: str | None,
        input_digest: str,
    ) -> ChildRun:
        """Return the child run at a path. Halt the outer run if another one is recorded there.

        Parameters:
            run_id: its id; made from the outer run's id and the path if None.
        """
        run = flow.run
        chosen = _derived_id(flow, path, input_digest) if run_id is None else run_id
        recorded = run.recording.children.get(path) if flow.reach(path, scope) else None
        if recorded is not None and (recorded.run_id, recorded.input) != (chosen, input_digest):
            raise run.writer.halt(
                StepInputChanged(
                    run.run_id,
                    path,
                    f"run {recorded.run_id!r}",
                    f"run {chosen!r}" if recorded.run_id != chosen else "another input",
                )
            )
        return ChildRun(flow, path, workflow, chosen, input_digest, recorded)

    async def begin(self, *, is_spawned: bool = False, is_detached: bool = False) -> int:
        """Record durably that it starts or continues. Return the sequence number of the entry."""
        flow, run = self.flow, self.flow.run
        flow.record_from_here()
        begun = run.writer.add(
            ChildStarted(
                self.path,
                self.run_id,
                self.workflow,
                self.input_digest,
                run.now(),
                flow.take_item(),
                flow.settle(),
                flow.take_source_ends(),
                is_spawned,
                is_detached,
            )
        )
        if is_spawned and not is_detached:
            run.spawned[begun] = self.run_id
        if flow.is_in_step:
            # The next attempt continues it or, with another input, begins another one.
            former = RecordedChild(begun, self.run_id, self.input_digest, is_spawned)
            run.recording.add_former_child(self.path, former)
        await run.writer.save()
        return begun


def _derived_id(flow: DurableFlow, path: str, input_digest: str) -> str:
    """Return the id of a child run for which its caller chose none.

    Once dead letters were retried or dropped, or a retry policy has begun the step around it anew, the
    run may have another input, and is another run then. So is one that replaces a cancelled run.
    """
    known = flow.run.recording
    recorded = known.children.get(path)
    if recorded is not None and recorded.input == input_digest:
        return recorded.run_id
    former = known.former_children.get(path, {})
    for child in former.values():
        # Between steps, an interrupted run may have been cancelled, and then it cannot continue. In a
        # step, another one replaces it once that is known.
        may_continue = flow.is_in_step and child.status is not RunStatus.CANCELLED
        stands = may_continue or child.is_spawned or child.ended is not None
        if child.input == input_digest and stands:
            return child.run_id
    made = f"{flow.run.run_id}/{path}"
    return f"{made} after retry {len(former)}" if former else made


def add_child_end(flow: DurableFlow, ended: ChildEnded) -> int:
    """Add the entry that a child run has ended. Return its sequence number."""
    sequence = flow.run.writer.add(ended)
    if ended.status is not RunStatus.COMPLETED:
        flow.run.failures.add(sequence)
        flow.unsettled.append(sequence)
    return sequence


def end_stands(recorded: RecordedChild, scope: Scope) -> bool:
    """Return whether a child run has ended for good: a resume tries a failure again, unless the body
    continued after it."""
    if recorded.ended is None or recorded.ended >= scope.limit:
        return False
    is_completed = recorded.status is RunStatus.COMPLETED
    return is_completed or recorded.is_settled or scope.limit < math.inf


def replayed_end(run: Run, blueprint: Blueprint, path: str, end: RecordedChild | ChildEnded) -> Any:
    """Return or raise how a child run has ended."""
    types = blueprint.output_types
    if end.status is RunStatus.COMPLETED:
        return run.decode(end.output, path, types, blueprint.output_type)
    assert end.error is not None
    return run.replay_failure(end.error, path, types)


async def cancel_spawned(run: Run) -> None:
    """Request the cancellation of all runs that a cancelled run has spawned."""
    store = run.checkpoints.store
    for child in dict.fromkeys(run.spawned.values()):
        try:
            with store_errors(store, child):
                await store.send(child, CANCEL, key=CANCEL)
        except (RunNotFound, RunEnded):
            continue
        except CheckpointError as error:
            raise run.writer.halt(error) from error
