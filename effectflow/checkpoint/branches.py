"""The branches of an operator in a durable run, and the decision about them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import anyio

from effectflow.checkpoint.entries import BranchesEnded, Decided, ErrorRecord
from effectflow.checkpoint.errors import DefinitionChanged, NotSerializable
from effectflow.checkpoint.failures import (
    read_failure,
    read_suppressed,
    write_end,
    write_suppressed,
)
from effectflow.checkpoint.recording import RecordedDecision
from effectflow.checkpoint.schema import schema_of
from effectflow.checkpoint.values import NO_TYPES, Tree, digest_of, to_tree
from effectflow.effects.errors import Halt
from effectflow.effects.paths import child_path
from effectflow.effects.scope import Scope
from effectflow.effects.trails import Suppressed, TypedFailure

if TYPE_CHECKING:
    from effectflow.checkpoint.flow import DurableFlow

_ERRORS = schema_of(ErrorRecord)

_NOTHING_FAILED = (
    "Resume it with the items and the code that it was started with, and put operations that may fail "
    "into steps. force=True does not help, because the other branches were cancelled, so there are no "
    "values to continue with."
)


class DurableBranches:
    """The branches of one run of an operator in a durable flow."""

    def __init__(self, outer: DurableFlow, path: str, scope: Scope) -> None:
        self.outer = outer
        self.path = path
        self.scope = scope
        self.sequence: int | None = None
        self.has_entries = False
        self._unsettled: list[int] = []
        self._failed: list[int] = []
        self._last_failure: tuple[object, int] | None = None
        # Recorded branches that this life has not begun, and the gate around the reading of their items.
        self._to_begin = dict.fromkeys(outer.run.recording.branches.get(path, ()))
        self._gate: anyio.CancelScope | None = None
        self.decision: RecordedDecision | None = None
        self._unrecorded_deadline: float | None = None
        self._kept: Tree = None
        known = outer.run.recording.decisions.get(path)
        if known is not None and known.sequence < scope.limit:
            self.decision = known
            self.sequence = known.sequence

    def deadline(self, seconds: float) -> float | None:
        outer, run = self.outer, self.outer.run
        if not outer.is_recording:
            self._unrecorded_deadline = run.now() + seconds
            return seconds
        known = run.recording.decisions.get(f"{self.path}/deadline")
        if known is None:
            self._record_deadline(run.now() + seconds)
            return seconds
        if outer.has_gone_on(self.scope, self.path, known.sequence):
            return None
        until = known.value
        assert isinstance(until, float | int)
        left = min(max(0.0, until - run.now()), seconds)
        run.activity.begin_deadline(self, run.now() + left)
        return left

    def keep_deadline(self) -> None:
        """Record the deadline of an operator that began before its flow recorded anything."""
        until, self._unrecorded_deadline = self._unrecorded_deadline, None
        if until is not None and self.sequence is None:
            self._record_deadline(until)

    def _record_deadline(self, until: float) -> None:
        run = self.outer.run
        if self._may_decide():
            path = f"{self.path}/deadline"
            self.outer.record_decision(self.scope, path, until, failed=False)
        run.activity.begin_deadline(self, until)

    def branch(self, key: object, item: object, *, is_keyed: bool) -> DurableFlow:
        outer = self.outer
        path = self.path if key is None else child_path(self.path, key)
        self._to_begin.pop(path, None)
        if self._gate is not None and not self._to_begin:
            self._gate.shield = False
        flow = outer.inner(path, branches=self)
        if not is_keyed and item is not None and outer.is_recording:
            # Some items, such as effects, are identified only by their position.
            with suppress(NotSerializable):
                flow.set_item(digest_of(item, options=self.outer.run.checkpoints.value_options))
        return flow

    def has_records(self, key: object) -> bool:
        return child_path(self.path, key) in self.outer.run.recording.flows

    def has_more_records(self) -> bool:
        return bool(self._to_begin)

    @contextmanager
    def reading(self) -> Generator[None]:
        self.outer.begin_branch()
        try:
            has_ended = self.decision is not None and self.decision.has_ended
            # Branches that have ended do not begin again, so a gate would stay closed.
            if self._to_begin and not has_ended:
                with self.outer.run.stopping.gated() as self._gate:
                    yield
            else:
                yield
        finally:
            self._gate = None
            self.outer.end_branch()

    def _may_decide(self) -> bool:
        run = self.outer.run
        # A flow that is being cancelled makes no more decisions.
        is_cancelled = any(operator.is_decided for operator in self.scope.operators)
        return run.may_record and not is_cancelled and run.writer.halted is None

    def decide(self, value: object, *, failed: bool) -> None:
        if self._may_decide():
            self._record_or_keep(to_tree(value, path=self.path, types=NO_TYPES), failed=failed)

    def fail(self, ended: TypedFailure | Exception) -> None:
        if self._may_decide():
            self._record_or_keep(_ERRORS.write(write_end(ended, self.outer.run.types)), failed=True)

    def _record_or_keep(self, tree: Tree, *, failed: bool) -> None:
        """Record a decision, or keep it until the body records its decisions."""
        if self.outer.is_recording:
            self._record(tree, failed=failed)
        else:
            self._kept = tree
            self.outer.keep(self.path, partial(self._record, tree, failed=failed))

    def _record(self, tree: Tree, *, failed: bool) -> None:
        outer, run = self.outer, self.outer.run
        if failed:
            self.sequence = run.failures.decide(self.path, tree, run.now(), self._unsettled)
            self._failed = [self.sequence, *self._unsettled]
        else:
            is_observing = self.scope.is_observing
            settles = () if is_observing else outer.settle(self._unsettled)
            self.sequence = run.writer.add(Decided(self.path, tree, run.now(), settles=settles))

    def keep_failures(self) -> None:
        self._failed += self._unsettled

    def recorded_failure(self, again: object) -> TypedFailure | Exception:
        run, decision = self.outer.run, self.decision
        assert decision is not None
        record = _ERRORS.read(cast("dict[str, Any]", decision.value))
        if isinstance(again, TypedFailure | Exception):
            # The same error as before, even if it cannot be rebuilt from the record.
            found = write_end(again, run.types)
            same = (found.type, found.message, found.is_defect)
            if same == (record.type, record.message, record.is_defect):
                return again
        try:
            failure = read_failure(record, self.path, run.types)
        except NotSerializable as unreadable:
            raise run.writer.halt(unreadable) from unreadable
        return failure.error if record.is_defect else failure

    def take_failures(self, flow: DurableFlow) -> None:
        """Adopt the failures of a branch that has ended."""
        self.has_entries = self.has_entries or flow.has_entries
        self._unsettled += flow.unsettled
        self._last_failure = flow.last_failure or self._last_failure

    def failures_of_decision(self) -> list[int]:
        """Return the failed decision and its causes, until they are settled."""
        failed, self._failed = self._failed, []
        return failed

    def check_complete(self) -> None:
        outer, run = self.outer, self.outer.run
        if outer.is_in_step:
            return
        flows = run.recording.flows
        gone = [path for path in self._to_begin if path in flows and flows[path].items]
        if gone and run.force:
            run.leave_behind([item.sequence for path in gone for item in flows[path].items])
        elif gone:
            names = [path if len(path) <= 80 else f"{path[:80]}..." for path in gone[:5]]
            shown = ", ".join(map(repr, names)) + (" and more" if len(gone) > 5 else "")
            detail = f"{self.path!r} had the branches {shown}, and their items did not reappear"
            raise run.writer.halt(DefinitionChanged(run.run_id, run.workflow, detail=detail))

    def nothing_failed(self) -> Halt:
        run = self.outer.run
        assert self.decision is not None
        detail = (
            f"{self._named(self.decision.value)} led to a failure, which was handled, and now it "
        )
        detail += "does not fail, or is not among the items"
        return run.writer.halt(
            DefinitionChanged(run.run_id, run.workflow, detail=detail, advice=_NOTHING_FAILED)
        )

    def _named(self, branches: Tree) -> str:
        """Return the branch, or the first and last of some, by which the operator decided."""
        match branches:
            case str():
                return repr(f"{self.path}[{branches}]")
            case [int(first), int(end)]:
                return f"a part of items {first} to {end - 1} of {self.path!r}"
            case _:
                return f"item {branches} of {self.path!r}"

    def suppressed(self) -> Sequence[Suppressed]:
        if self.decision is None:
            return ()
        types = self.outer.run.types
        return [read_suppressed(record, types) for record in self.decision.suppressed]

    def end(self, *, is_complete: bool, suppressed: Sequence[Suppressed]) -> None:
        outer, run = self.outer, self.outer.run
        run.activity.end_deadline(self)
        outer.unsettled += [*self._failed, *self._unsettled]
        outer.last_failure = self._last_failure or outer.last_failure
        if outer.keeps(self.path):
            outer.record_or_keep(self.path, self._kept)
        if self.sequence is None or (self.decision is not None and self.decision.has_ended):
            return
        # Without entries, a resume has nothing to replay before it cancels the branches.
        can_record = run.may_record and run.writer.halted is None
        if self.scope.undos is not None:
            # A resume replays the branches, since they may register undos with the saga around.
            return
        if is_complete and self.has_entries and can_record:
            failures = write_suppressed(suppressed, run.types)
            run.writer.add(BranchesEnded(self.path, run.now(), failures))
