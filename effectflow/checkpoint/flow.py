"""The flows of a durable run, and their positions in what earlier lives recorded.

A flow replays its recorded operations in order until it reaches its *frontier*: the first operation
that is not recorded. While it replays, it cannot be cancelled, so that everything that was acquired
exists before anything releases it. The rules are in `docs/durability.md`.
"""

from __future__ import annotations

import math
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from effectflow.checkpoint import waits
from effectflow.checkpoint.branches import DurableBranches
from effectflow.checkpoint.cursor import Cursor
from effectflow.checkpoint.entries import Decided, Published, Ranges, SourceEnd
from effectflow.checkpoint.errors import (
    CompensationFailed,
    DefinitionChanged,
    StepInputChanged,
)
from effectflow.checkpoint.finalization import DurableFinalization
from effectflow.checkpoint.recording import DEAD_LETTER, RecordedDeadLetter
from effectflow.checkpoint.values import NO_TYPES, KnownTypes, Tree, from_tree, safe_repr, to_tree
from effectflow.effects.errors import Halt, LeftToResume, NotAcquired, Parked
from effectflow.effects.event_loop import raise_stop
from effectflow.effects.nodes import Step
from effectflow.effects.paths import StepPath, step_path
from effectflow.effects.scope import Branches, Finalization, Scope

if TYPE_CHECKING:
    from effectflow.checkpoint.run import Run

A = TypeVar("A")


class DurableFlow:
    """One sequential line of a durable run.

    Attributes:
        run: the run.
        path: the flow's path.
        around: the flow around it; None for the body of the run.
        branches_around: the operator whose branch it is, or None.
        unsettled: the sequence numbers of its failures that nothing has settled.
        may_wait: whether its waits are recorded, so that the run can be suspended meanwhile. Those in
            most steps are not.
        is_pinned: whether a step around it, of this run or an outer one, must not be cut off by a
            suspension. Then the run stays in memory while the flow waits.
        begun_finalizers: the finalizers that had begun in an earlier life, and whose sources it replays
            now, the inner ones last. These sources must not begin anything.
        last_failure: the error of the last failure with an entry, and its sequence number.
        source_end: for a finalizer, returns how its source has ended, until its first step records that.
        ended_at: the sequence number of the end of the last step or nested run that succeeded in it.
        cursor: its place in what earlier lives recorded of it; None if they recorded nothing.
    """

    __slots__ = (
        "_body",
        "_branches",
        "_codes",
        "_is_recording",
        "_item",
        "_kept",
        "_occurrences",
        "around",
        "begun_finalizers",
        "branches_around",
        "cursor",
        "ended_at",
        "is_pinned",
        "last_failure",
        "may_wait",
        "path",
        "run",
        "source_end",
        "unsettled",
    )

    def __init__(
        self,
        run: Run,
        path: str,
        around: DurableFlow | None = None,
        *,
        branches: DurableBranches | None = None,
        body: DurableFlow | None = None,
        is_recording: bool = True,
        may_wait: bool = True,
        is_pinned: bool = False,
    ) -> None:
        self.run = run
        self.path = path
        self.around = around
        # Not a reference to itself, so that a flow is freed without garbage collection.
        self._body = body
        self.branches_around = branches
        self.may_wait = may_wait
        self.is_pinned = is_pinned or (run.is_pinned if around is None else around.is_pinned)
        self.unsettled: list[int] = []
        self.last_failure: tuple[object, int] | None = None
        self.ended_at: int = 0 if around is None else around.ended_at
        self.source_end: Callable[[], SourceEnd] | None = None
        self.begun_finalizers: tuple[DurableFinalization, ...] = ()
        recorded = run.recording.flows.get(path)
        self.cursor: Cursor | None = None
        if recorded is not None:
            self.cursor = Cursor(run, path, recorded.items, is_ordered=not self.is_in_step)
        self._is_recording = is_recording
        self._kept: dict[str, Callable[[], object]] = {}
        self._item: str | None = None
        self._branches = 0
        self._occurrences: dict[str, int] = {}
        self._codes: dict[str, Any] = {}

    @property
    def is_stopping(self) -> bool:
        return self.run.stopping.has_begun

    @property
    def is_shielded(self) -> bool:
        return self.run.is_shielded

    @property
    def started_version(self) -> str | None:
        return self.run.started_version

    def stop(self) -> None:
        self.run.stopping.begin()

    async def save_now(self, reason: str) -> None:
        if self.run.records:
            await self.run.writer.save(reason=reason)

    @property
    def body(self) -> DurableFlow:
        """The body of the run or step that it is a branch or a finalizer of, or this flow itself."""
        return self if self._body is None else self._body

    @property
    def is_in_step(self) -> bool:
        """Whether it is in a step of this run, whose next attempt may reach operations in any order."""
        return self.body.path != ""

    @property
    def is_recording(self) -> bool:
        """Whether its operators record their decisions.

        Those inside a step do so once the step goes on to what is recorded, such as a step. Without
        that, a step runs again as a whole.
        """
        return self.body._is_recording

    def record_from_here(self) -> None:
        """Record decisions from now on, in the whole body, and what it has decided before.

        What follows may depend on them, and a resume compares or releases it.
        """
        body = self.body
        if body._is_recording:
            return
        body._is_recording = True
        kept, body._kept = body._kept, {}
        for record in kept.values():
            record()
        for operator in reversed(list(self._operators_around())):
            operator.keep_deadline()

    def _operators_around(self) -> Iterator[DurableBranches]:
        """Yield the operators in the body whose branches this flow is part of, the inner ones first."""
        flow: DurableFlow | None = self
        while flow is not None and flow is not self.body:
            if flow.branches_around is not None:
                yield flow.branches_around
            flow = flow.around

    def record_waits(self) -> None:
        self.record_from_here()
        self.may_wait = True

    def keep(self, path: str, record: Callable[[], object]) -> None:
        """Keep the function that records a decision until the body records its decisions."""
        self.body._kept[path] = record

    def keeps(self, path: str) -> bool:
        """Return whether a decision is kept until the body records its decisions."""
        return path in self.body._kept

    def record_or_keep(self, path: str, tree: Tree) -> None:
        """Record a value, or the decision of an operator that has ended, or keep it until it is needed.

        It is final, because what the body does next follows from it.
        """
        run = self.run

        def record() -> None:
            if run.may_record:
                run.writer.add(Decided(path, tree, run.now()))

        if self.is_recording:
            record()
        else:
            self.keep(path, record)

    # The three operations.

    def execute(self, step: Step, env: Any, scope: Scope) -> Coroutine[Any, Any, Any]:
        run = self.run
        run.writer.check()
        return run.execution(self, step, env, scope).begin()

    async def decide(
        self,
        scope: Scope,
        name: str,
        compute: Callable[[], A],
        *,
        has_failed: Callable[[A], bool] | None = None,
    ) -> A:
        run = self.run
        path = self.next_path(name)
        run.writer.check()
        known = run.recording.decisions.get(path)
        if known is not None and known.sequence < scope.limit:
            return from_tree(known.value, path=path, types=NO_TYPES)
        is_value = has_failed is None
        if not self.is_recording or (is_value and self.is_in_step):
            # Even while the run is being stopped, because a finalizer in the step may need the value.
            value = compute()
            if is_value:
                self.record_or_keep(path, to_tree(value, path=path, types=NO_TYPES))
            return value
        await self.check(scope, path)
        value = compute()
        if run.may_record:
            failed = not is_value and has_failed(value)
            self.record_decision(scope, path, value, failed=failed)
        return value

    def record_decision(self, scope: Scope, path: str, value: object, *, failed: bool) -> int:
        """Add a decision to the journal. Return its sequence number."""
        run = self.run
        tree = to_tree(value, path=path, types=NO_TYPES)
        if failed:
            sequence = run.failures.decide(path, tree, run.now(), self.unsettled)
            self.unsettled.append(sequence)
            return sequence
        settles = () if scope.is_observing else self.settle()
        return run.writer.add(Decided(path, tree, run.now(), settles=settles))

    async def set_aside(
        self, scope: Scope, content: Callable[[], dict[str, Any]]
    ) -> RecordedDeadLetter:
        """Record that the item of this branch is a dead letter, which settles its failure.

        Return the dead letter, of an earlier life if it is recorded. `content` is as in its class.
        """
        run = self.run
        path = self.next_path(DEAD_LETTER)
        run.writer.check()
        known = run.recording.dead_letters.get(path)
        if known is not None and known.sequence < scope.limit:
            return known
        await self.check(scope, path)
        letter = RecordedDeadLetter(0, path, content())
        if self.is_recording and run.may_record:
            settles = self.settle()
            letter.sequence = run.writer.add(
                Decided(path, letter.content, run.now(), settles=settles)
            )
            run.writer.count_dead_letter()
        return letter

    wait = waits.wait_for
    wait_until = waits.wait_until
    wait_for_retry = waits.wait_for_retry

    async def publish(self, scope: Scope, key: str, value: object, types: KnownTypes) -> None:
        """Record a value for others to read: once, or in each attempt of a step without steps."""
        run = self.run
        path = self.next_path("publish")
        if not self.is_recording:
            if run.may_record:
                self._publish("", key, value, types)
            return
        run.writer.check()
        if self.reach(path, scope):
            return
        await self.check(scope, path)
        if run.may_record:
            self._publish(path, key, value, types)

    def _publish(self, path: str, key: str, value: object, types: KnownTypes) -> None:
        run = self.run
        tree = run.encode(value, path or f"{self.path}/publish", types)
        item = self.take_item() if path else None
        run.writer.add(Published(path, key, tree, run.now(), item))
        run.writer.announce()

    # The recorded operations of the flow.

    @property
    def has_entries(self) -> bool:
        """Whether it has reached anything that has a path."""
        return bool(self._occurrences)

    def next_path(self, name: str) -> str:
        """Return the path of the next occurrence of a name: `name`, then `name#2`, and so on."""
        count = self._occurrences.get(name, 0) + 1
        self._occurrences[name] = count
        return step_path(self.path, name, count)

    def reached(self) -> tuple[str, ...]:
        """Return the last segment of each name that the flow has used."""
        return tuple(step_path("", name, count) for name, count in self._occurrences.items())

    def skip_to(self, reached: tuple[str, ...]) -> None:
        """Continue after the segments that an earlier life used, without reaching them."""
        self._occurrences = {segment.name: segment.occurrence for segment in map(StepPath, reached)}

    @contextmanager
    def kept_place(self) -> Generator[None]:
        """Return to the current place among the recorded operations when the block ends."""
        cursor, occurrences = self.cursor, dict(self._occurrences)
        position = 0 if cursor is None else cursor.position
        try:
            yield
        finally:
            self._occurrences = occurrences
            if cursor is not None:
                cursor.position = position

    def path_to_come(self, name: str) -> str:
        """Return the path that the next occurrence of a name will have."""
        return step_path(self.path, name, self._occurrences.get(name, 0) + 1)

    def last_path(self, name: str) -> str:
        """Return the path of the last occurrence of a name."""
        return step_path(self.path, name, self._occurrences[name])

    def reach(self, path: str, scope: Scope) -> bool:
        """Reach an operation. Return whether it is recorded.

        Halts the run with DefinitionChanged if something else is recorded here.
        """
        return self.cursor is not None and self.cursor.reach(path, scope)

    def has_ahead(self, limit: float) -> bool:
        return self.cursor is not None and self.cursor.has_ahead(limit)

    def has_gone_on(self, scope: Scope, path: str, sequence: int) -> bool:
        """Return whether an earlier life continued after an operation or operator of this flow.

        Here or, once this flow had ended, in a flow around it.

        Parameters:
            path: its path.
            sequence: its entry.
        """
        flow, limit = self, scope.limit
        if limit < math.inf and not scope.was_cancelled():
            # This flow led to a decision, so it had ended.
            return True
        while flow.cursor is None or not flow.cursor.has_others_ahead(path, sequence, limit):
            branches, around = flow.branches_around, flow.around
            if around is None:
                return False
            if branches is None:
                # A finalizer, or the body of a step. No operator limits what comes after it.
                path, limit = flow.path, math.inf
            else:
                path, limit = branches.path, branches.scope.limit
            flow = around
        return True

    # Cancellation and replay.

    async def check(self, scope: Scope, what: str) -> None:
        """Raise the cancellation if there is one. Call it before anything new begins."""
        cancellation = self.pending_cancellation(scope, what)
        if cancellation is not None:
            await cancellation

    def pending_cancellation(self, scope: Scope, what: str) -> Coroutine[Any, Any, object] | None:
        """Return the wait for the cancellation of this flow, or None if something new may begin.

        It may not if an outer operator has decided, the run is being stopped, or its worker drains. If no
        cancellation reaches the flow, this raises what ends it.
        """
        flow: DurableFlow | None = self
        released: str | None = None
        while flow is not None:
            for finalizer in flow.begun_finalizers:
                if finalizer.unreadable is not None:
                    raise self.run.writer.halt(finalizer.unreadable)
                released = finalizer.path
            flow = flow.around
        if scope.operators and scope.cancelling_operator() is not None:
            return anyio.sleep_forever()
        if released is not None and not self.run.force:
            raise self._continues_before(released, what)
        if scope.acquisition is not None and not scope.acquisition.may_continue():
            raise NotAcquired
        run = self.run
        if run.stopping.has_begun:
            if scope.is_out_of_reach:
                raise LeftToResume(repr(what))
            return raise_stop()
        has_drain = run.drain is not None and run.drain.has_begun
        if has_drain and not (scope.is_out_of_reach or self.is_pinned):
            return self._leave_to_another_worker()
        return None

    def _continues_before(self, finalizer: str, what: str) -> Halt:
        """Halt the run because the source of a finalizer that has begun would begin something."""
        run = self.run
        detail = f"{finalizer!r} has begun, and now the run reaches {what!r} before it"
        return run.writer.halt(DefinitionChanged(run.run_id, run.workflow, detail=detail))

    async def _leave_to_another_worker(self) -> None:
        with self.run.activity.rest("another worker", 0.0):
            await anyio.sleep_forever()

    async def run_branch(self, scope: Scope, work: Callable[[], Awaitable[A]]) -> A:
        around = self.around
        if around is not None:
            around.begin_branch()
        try:
            with self.gated(scope):
                outcome = await work()
            if self.cursor is not None:
                # What a cancelled flow did after the decision is discarded.
                self.cursor.end(scope.limit if scope.was_cancelled() else math.inf)
            return outcome
        except Parked as parked:
            self.run.park(self, parked)
            raise
        finally:
            if self.branches_around is not None:
                self.branches_around.take_failures(self)
            if around is not None:
                around.ended_at = max(around.ended_at, self.ended_at)
                around.end_branch()

    def gated(self, scope: Scope) -> AbstractContextManager[None]:
        """Let no cancellation into the block before the flow has reached what is recorded."""
        return nullcontext() if self.cursor is None else self.cursor.gated(scope.limit)

    def begin_branch(self) -> None:
        """Count a branch, or the reading of an item, as busy in place of this flow, or with others."""
        if self._branches:
            self.run.activity.busy += 1
        self._branches += 1

    def end_branch(self) -> None:
        """Count this flow as busy again after its last branch."""
        self._branches -= 1
        if self._branches:
            self.run.activity.end_branch()

    # Parts of the flow.

    def branches(self, scope: Scope, name: str) -> Branches:
        path = self.next_path(name)
        if self.cursor is not None and path in self.run.recording.places:
            self.cursor.pass_operator(path, scope.limit)
        return DurableBranches(self, path, scope)

    def limit(self, scope: Scope, seconds: float | None) -> DurableBranches | None:
        path = f"{self.path}/limit"
        if seconds is None and path not in self.run.recording.decisions:
            return None
        self.branches_around = DurableBranches(self, path, scope)
        return self.branches_around

    async def finalize(
        self, work: Coroutine[Any, Any, A], inside: DurableFlow | None = None
    ) -> tuple[A | None, BaseException | None]:
        """Run a finalizer or its like; `inside` is its flow, unless that is a branch."""
        try:
            return await self.run.stopping.finalizing(work)
        except Parked as parked:
            if inside is not None:
                self.run.park(inside, parked)
            if parked.reason is None or (parked.is_before_others and not self.has_ahead(math.inf)):
                raise
            # Like a resume, a plan does not check what a finalizer does outside steps.
            return None, None

    async def protect(self, work: Coroutine[Any, Any, A]) -> tuple[A, BaseException | None]:
        return await self.run.stopping.protected(work), None

    def supervise(self, work: Callable[[], Coroutine[Any, Any, A]]) -> Coroutine[Any, Any, A]:
        return self.run.stopping.supervised(work)

    def compensation_failed(self, error: object, left: Callable[[], Sequence[str]]) -> None:
        if self.is_recording:
            run = self.run
            raise run.stopping.give_up(CompensationFailed(run.run_id, safe_repr(error), left()))

    def finalization(self, name: str) -> Finalization | None:
        path = self.next_path(name)
        if self.cursor is not None:
            self.cursor.enter_finalizer(path)
        return DurableFinalization(self, path)

    def inner(self, path: str, *, branches: DurableBranches | None = None) -> DurableFlow:
        """Return the flow of a branch of an operator, or of a finalizer."""
        return DurableFlow(
            self.run,
            path,
            self,
            branches=branches,
            body=self.body,
            may_wait=self.may_wait,
        )

    def body_of(self, path: str, *, may_wait: bool = False, is_pinned: bool = False) -> DurableFlow:
        """Return the flow of the body of a step."""
        return DurableFlow(
            self.run,
            path,
            self,
            is_recording=self.run.recording.has_within(path),
            may_wait=may_wait,
            is_pinned=is_pinned,
        )

    def settle(self, more: Iterable[int] = ()) -> Ranges:
        """Settle the failures that the workflow has handled, as this flow continues. Return their ranges.

        These are its own failures, those of the flows and decisions around it, and `more`. Halts the run
        if a resume could not rebuild one of them.
        """
        failures = self.run.failures
        if not failures.sequences:
            return ()
        found = set(more)
        flow: DurableFlow | None = self
        while flow is not None:
            found.update(flow.unsettled)
            flow.unsettled = []
            if flow.branches_around is not None:
                found.update(flow.branches_around.failures_of_decision())
            flow = flow.around
        return failures.settle(found)

    def settle_own(self) -> Ranges:
        """Settle only the failures of this flow: of a step, by its completion."""
        if not self.unsettled:
            return ()
        found, self.unsettled = set(self.unsettled), []
        return self.run.failures.settle(found)

    def set_item(self, digest: str) -> None:
        """Set the digest of the flow's item, which its first entry records and a resume compares."""
        recorded = self.run.recording.flows.get(self.path)
        if recorded is None or recorded.item is None:
            self._item = digest
        elif recorded.item != digest:
            run = self.run
            raise run.writer.halt(
                StepInputChanged(
                    run.run_id,
                    self.path,
                    "(another item)",
                    "(an item at the same position; key= names items so that their order may change)",
                )
            )

    def take_item(self) -> str | None:
        """Return the digest to record with an entry. It is recorded once."""
        digest, self._item = self._item, None
        return digest

    def take_source_ends(self) -> tuple[SourceEnd, ...]:
        """Return the ends of the sources of the outer finalizers that have not begun a step before."""
        ends: list[SourceEnd] = []
        flow: DurableFlow | None = self
        while flow is not None:
            if flow.source_end is not None:
                ends.append(flow.source_end())
                flow.source_end = None
            flow = flow.around
        return tuple(ends)

    def check_function(self, name: str, code: object, qualified: str) -> None:
        """Raise TypeError if another function has given a step of this flow the same name."""
        known = self._codes.setdefault(name, code)
        if known is not code:
            raise TypeError(
                f"two functions give the name {name!r} to steps of one flow of run "
                f"{self.run.run_id!r}; the last one is {qualified!r}. Rename one of them, because a "
                "resume could not tell them apart"
            )
