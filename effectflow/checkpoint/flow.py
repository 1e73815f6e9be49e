"""The flows of a durable run, and their positions in what earlier lives recorded.

A flow replays its recorded operations in order until it reaches its *frontier*: the first operation
that is not recorded. While it replays, it cannot be cancelled, so that everything that was acquired
exists before anything releases it. The rules are in `docs/durability.md`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from effectflow.checkpoint.branches import DurableBranches
from effectflow.checkpoint.entries import (
    Decided,
    Published,
    SourceEnd,
    Waiting,
)
from effectflow.checkpoint.errors import (
    CompensationFailed,
    DefinitionChanged,
    NotSerializable,
    StepInputChanged,
)
from effectflow.checkpoint.finalization import DurableFinalization
from effectflow.checkpoint.replay import (
    DEAD_LETTER,
    RecordedDeadLetter,
    RecordedFlow,
    RecordedWait,
)
from effectflow.checkpoint.schema import LATEST
from effectflow.checkpoint.values import (
    NO_TYPES,
    KnownTypes,
    Tree,
    from_tree,
    safe_repr,
    to_tree,
)
from effectflow.effects.errors import LeftToResume, NotAcquired, Parked
from effectflow.effects.nodes import Step
from effectflow.effects.paths import StepPath, as_name, step_path
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
        is_recording: whether its operators record their decisions. Those inside a step do not, because a
            step runs again as a whole.
        is_ordered: whether it must reach recorded operations in order. The body of a step that did not
            complete need not.
        unsettled: the sequence numbers of its failures that nothing has settled.
        may_wait: whether it is the body of a step that may wait. It records decisions once it waits.
        replays_only: why it must not begin anything: its end is recorded and cannot be rebuilt. Or None.
        last_failure: the error of the last failure with an entry, and its sequence number.
        source_end: for a finalizer, returns how its source has ended, until its first step records that.
        ended_at: the sequence number of the end of the last step or nested run that succeeded in it.
    """

    __slots__ = (
        "_branches",
        "_codes",
        "_cursor",
        "_gate",
        "_gate_limit",
        "_item",
        "_occurrences",
        "_recorded",
        "around",
        "branches_around",
        "ended_at",
        "is_ordered",
        "is_recording",
        "last_failure",
        "may_wait",
        "path",
        "replays_only",
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
        is_recording: bool = True,
        is_ordered: bool = True,
        may_wait: bool = False,
    ) -> None:
        self.run = run
        self.path = path
        self.around = around
        self.branches_around = branches
        self.is_recording = is_recording
        self.is_ordered = is_ordered
        self.may_wait = may_wait
        self.unsettled: list[int] = []
        self.last_failure: tuple[object, int] | None = None
        self.ended_at: int = 0 if around is None else around.ended_at
        self.source_end: Callable[[], SourceEnd] | None = None
        self.replays_only: NotSerializable | None = None
        self._item: str | None = None
        self._recorded: RecordedFlow | None = run.recording.flows.get(path)
        self._cursor = 0
        self._gate: anyio.CancelScope | None = None
        self._gate_limit = math.inf
        self._branches = 0
        self._occurrences: dict[str, int] = {}
        self._codes: dict[str, Any] = {}

    @property
    def is_stopping(self) -> bool:
        return self.run.stopping.has_begun

    @property
    def started_version(self) -> str | None:
        return self.run.started_version

    def stop(self) -> None:
        self.run.stopping.begin()

    async def save_now(self, reason: str) -> None:
        if self.run.records:
            await self.run.writer.save(reason=reason)

    def record_decisions(self) -> None:
        self.is_recording = True

    # The three operations.

    def execute(self, step: Step, env: Any, scope: Scope) -> Coroutine[Any, Any, Any]:
        return self.run.execute(self, step, env, scope)

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
        if not self.is_recording:
            return compute()
        run.writer.check()
        known = run.recording.decisions.get(path)
        if known is not None and known.sequence < scope.limit:
            return from_tree(known.value, path=path, types=NO_TYPES)
        await self.check(scope, path)
        value = compute()
        if run.may_record:
            failed = has_failed is not None and has_failed(value)
            self.record_decision(scope, path, value, failed=failed)
        return value

    def record_decision(self, scope: Scope, path: str, value: object, *, failed: bool) -> int:
        """Add a decision to the journal. Return its sequence number."""
        run = self.run
        tree = to_tree(value, path=path, types=NO_TYPES)
        if failed:
            because = run.failures.as_ranges(self.unsettled)
            sequence = run.writer.add(Decided(path, tree, run.now(), True, because))
            run.failures.add(sequence)
            self.unsettled.append(sequence)
            return sequence
        settles = () if scope.is_observing else run.failures.settle(self)
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
            settles = run.failures.settle(self)
            letter.sequence = run.writer.add(
                Decided(path, letter.content, run.now(), settles=settles)
            )
            run.writer.count_dead_letter()
        return letter

    async def wait(self, scope: Scope, seconds: float) -> None:
        run = self.run
        path = self.next_path("sleep")
        if not self.is_durable(scope) or not seconds > 0:
            await run.sleep(path, seconds, scope)
            return
        until = await self._recorded_time(scope, path, lambda: run.time_after(seconds))
        await self.sleep_until(path, until, seconds, scope)

    async def wait_until(self, scope: Scope, until: float) -> None:
        path = self.next_path("sleep")
        if self.is_durable(scope):
            until = await self._recorded_time(scope, path, lambda: min(until, LATEST))
        await self.sleep_until(path, until, math.inf, scope)

    async def _recorded_time(self, scope: Scope, path: str, choose: Callable[[], float]) -> float:
        """Return the recorded time of a wait. If there is none yet, record the given one."""
        run = self.run
        run.writer.check()
        if self.reach(path, scope):
            recorded = run.recording.waits[path].until
            assert recorded is not None
            return recorded
        await self.check(scope, path)
        until = choose()
        self.begin_wait(scope, path, until=until)
        return until

    async def wait_for_retry(self, scope: Scope, until: float, longest: float) -> None:
        if self.is_durable(scope):
            path = step_path(self.path, "retry", self._occurrences["retry"])
            await self.sleep_until(path, until, longest, scope)
        else:
            await scope.clock.sleep(min(max(0.0, until - self.run.now()), longest))

    async def sleep_until(
        self, path: str, until: float, longest: float, scope: Scope, *, what: str = "a time"
    ) -> None:
        """Wait until a recorded time. The flow rests meanwhile, unless a step around it is in progress.

        Parameters:
            until: the time, in seconds since the epoch.
            longest: the seconds to wait at most.
            what: what it waits for, for people.
        """
        run = self.run
        # The clock of another machine may be ahead. Never wait longer because of that.
        left = min(max(0.0, until - run.now()), longest)
        if left > 0 and self._can_rest():
            with run.activity.rest(what, run.now() + left):
                await run.sleep(path, left, scope)
        else:
            await run.sleep(path, left, scope)

    def is_durable(self, scope: Scope) -> bool:
        """Return whether a wait here is recorded, so that the run can be suspended meanwhile."""
        return not scope.is_shielded and self._can_rest()

    def _can_rest(self) -> bool:
        """Return whether the run can be suspended here: this flow records decisions, or once it waits."""
        flow = self
        while not flow.is_recording:
            if flow.branches_around is None:
                return flow.may_wait
            assert flow.around is not None
            flow = flow.around
        return True

    def _record_from_here(self) -> None:
        """Record decisions from now on, here and in the flows around, up to the step that waits."""
        flows: list[DurableFlow] = []
        flow: DurableFlow | None = self
        while flow is not None and not flow.is_recording:
            flows.append(flow)
            flow = None if flow.branches_around is None else flow.around
        for flow in reversed(flows):
            flow.is_recording = True
            if flow.branches_around is not None:
                flow.branches_around.keep_deadline()

    def begin_wait(
        self,
        scope: Scope,
        path: str,
        *,
        until: float | None = None,
        topic: str = "",
        child: str = "",
    ) -> None:
        """Record a wait; the parameters are as in `Waiting`."""
        run = self.run
        if run.may_record:
            self._record_from_here()
            settles = () if scope.is_observing else run.failures.settle(self)
            item = self.take_item()
            run.writer.add(Waiting(path, until, run.now(), item, settles, topic, child))

    async def receive(self, scope: Scope, topic: str, decode: Callable[[Tree], A]) -> A:
        """Wait for the next message about a topic. A resume yields the recorded one.

        Parameters:
            topic: the topic.
            decode: returns the value in the message, or raises MalformedValue.
        """
        run = self.run
        self.check_can_wait(scope, topic)
        path = self.next_path(as_name(topic))
        run.writer.check()
        if self.reach(path, scope):
            wait = run.recording.waits[path]
            if wait.received is not None and wait.received < scope.limit:
                return run.decode_message(wait.value, path, decode)
            await self.check(scope, path)
        else:
            await self.check(scope, path)
            self.begin_wait(scope, path, topic=topic)
        while True:
            message = await run.next_message(path, topic)
            # An operator may have decided at the same time. Then the message stays in the mailbox.
            await self.check(scope, path)
            if run.mailbox.first(topic) is message:
                break
        tree = run.mailbox.open(message)
        value = run.decode_message(tree, path, decode)
        sequence = run.take_message(path, message, tree)
        if not self.is_ordered:
            # The next attempt of the step receives the message, too.
            run.recording.waits[path] = RecordedWait(sequence, None, topic, sequence, tree)
            run.recording.places.add(path)
        return value

    def check_can_wait(self, scope: Scope, name: str) -> None:
        """Raise TypeError inside a step, an acquisition or a finalizer, which are not suspended."""
        if not self.is_durable(scope):
            where = "an acquisition or finalizer" if scope.is_shielded else f"step {self.path!r}"
            raise TypeError(
                f"{name!r} is awaited inside {where} of run {self.run.run_id!r}, which cannot be "
                "suspended: wait between steps"
            )

    async def publish(self, scope: Scope, key: str, value: object, types: KnownTypes) -> None:
        """Record a value for others to read, once. Within a step, each attempt records it again."""
        run = self.run
        if not self.is_recording:
            if run.may_record:
                self._publish("", key, value, types)
            return
        path = self.next_path("publish")
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
        cursor, occurrences = self._cursor, dict(self._occurrences)
        try:
            yield
        finally:
            self._cursor, self._occurrences = cursor, occurrences

    def path_to_come(self, name: str) -> str:
        """Return the path that the next occurrence of a name will have."""
        return step_path(self.path, name, self._occurrences.get(name, 0) + 1)

    def reach(self, path: str, scope: Scope) -> bool:
        """Reach an operation. Return whether it is recorded.

        Halts the run with DefinitionChanged if something else is recorded here.
        """
        recorded = self._recorded
        if recorded is None:
            return False
        if not self.is_ordered:
            return path in self.run.recording.places
        items = recorded.items
        if path in self.run.recording.left_behind:
            # It may be reached again, in any order.
            if not self.has_ahead(scope.limit):
                self.open_gate()
            return True
        while self.has_ahead(scope.limit):
            item = items[self._cursor]
            if item.path == path:
                self._cursor += 1
                self._open_gate_at_frontier()
                return True
            if item.kind == "finalizer":
                # This life reaches the finalizer in another way, or not at all.
                self._cursor += 1
            elif scope.was_cancelled():
                # The flow was cancelled then, and is cancelled here.
                self._cursor = len(items)
            elif self.run.force:
                self._leave_behind(path)
            else:
                raise self.run.writer.halt(self._diverged(item.path, path))
        self.open_gate()
        return False

    def _pass_operator(self, path: str, scope: Scope) -> None:
        """Pass a recorded operator. Steps of the flow may have been recorded before its first branch."""
        recorded = self._recorded
        if recorded is None or not self.is_ordered:
            return
        items = recorded.items
        for number in range(self._cursor, len(items)):
            if items[number].path == path:
                if number == self._cursor:
                    self._cursor += 1
                else:
                    rest = [*items[:number], *items[number + 1 :]]
                    self._recorded = RecordedFlow(rest, recorded.item)
                break
        if not self.has_ahead(scope.limit):
            self.open_gate()

    def paths_ahead(self) -> list[str]:
        """Return the recorded steps that the flow has not reached."""
        items = self._recorded.items if self._recorded else []
        return [item.path for item in items[self._cursor :] if item.kind == "step"]

    def end(self) -> None:
        """Halt the run if the flow ended before it reached all of its recorded operations."""
        if self._recorded is None or not self.is_ordered:
            return
        left = [item for item in self._recorded.items[self._cursor :] if item.kind != "finalizer"]
        if left and self.run.force:
            self._cursor = len(self._recorded.items)
            self.run.leave_behind([item.sequence for item in left])
        elif left:
            raise self.run.writer.halt(self._diverged(left[0].path, None))

    def has_ahead(self, limit: float) -> bool:
        """Return whether the flow has recorded operations ahead that count here."""
        recorded = self._recorded
        return (
            recorded is not None
            and self._cursor < len(recorded.items)
            and recorded.items[self._cursor].sequence < limit
        )

    def _must_pass(self, limit: float) -> bool:
        """Return whether the flow must reach recorded operations before it may be cancelled.

        Finalizers that a cancellation caused do not count.
        """
        recorded = self._recorded
        if recorded is None or not self.is_ordered:
            return False
        ends = self.run.recording.source_ends
        return any(
            item.sequence < limit
            and not (item.kind == "finalizer" and ends[item.path].kind == "cancelled")
            for item in recorded.items[self._cursor :]
        )

    def _leave_behind(self, path: str) -> None:
        """Skip the recorded operations before this one, or all of them if this one is not recorded."""
        assert self._recorded is not None
        items = self._recorded.items
        paths = [item.path for item in items[self._cursor :]]
        end = self._cursor + paths.index(path) if path in paths else len(items)
        self.run.leave_behind([item.sequence for item in items[self._cursor : end]])
        self._cursor = end

    def _diverged(self, recorded: str, found: str | None) -> DefinitionChanged:
        run = self.run
        where = f"at operation {self._cursor + 1} of " + (
            f"branch {self.path!r}" if self.path else "the body"
        )
        if found is None:
            detail = f"{where} the run reached {recorded!r}, and now it ends before that"
        else:
            detail = f"{where} the run reached {recorded!r}, and now it reaches {found!r}"
        return DefinitionChanged(run.run_id, run.workflow, detail=detail)

    # Cancellation and replay.

    async def check(self, scope: Scope, what: str) -> None:
        """Raise the cancellation if an outer operator has decided. Call it before anything new begins."""
        flow: DurableFlow | None = self
        while flow is not None:
            if flow.replays_only is not None:
                raise self.run.writer.halt(flow.replays_only)
            flow = flow.around
        if scope.cancelling_operator() is not None:
            await anyio.sleep_forever()
        if scope.acquisition is not None and not scope.acquisition.may_continue():
            raise NotAcquired
        run = self.run
        if run.stopping.has_begun:
            if scope.is_shielded or run.is_shielded:
                raise LeftToResume(repr(what))
            await anyio.sleep_forever()
        if run.drain is not None and run.drain.has_begun and not scope.is_shielded:
            with run.activity.rest("another worker", 0.0):
                await anyio.sleep_forever()

    async def run_branch(self, scope: Scope, work: Callable[[], Awaitable[A]]) -> A:
        around = self.around
        if around is not None:
            around.begin_branch()
        try:
            if self._must_pass(scope.limit):
                self._gate_limit = scope.limit
                with self.run.stopping.gated() as self._gate:
                    outcome = await work()
            else:
                outcome = await work()
            if not scope.was_cancelled():
                self.end()
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

    def _open_gate_at_frontier(self) -> None:
        # The limit of the branch: an acquisition within it has none, as it is shielded.
        if self._gate is not None and not self.has_ahead(self._gate_limit):
            self.open_gate()

    def open_gate(self) -> None:
        """Let cancellations through, because all recorded operations were reached."""
        if self._gate is not None:
            self._gate.shield = False
            self._gate = None

    # Parts of the flow.

    def branches(self, scope: Scope, name: str) -> Branches:
        path = self.next_path(name)
        if path in self.run.recording.places:
            self._pass_operator(path, scope)
        return DurableBranches(self, path, scope)

    async def finalize(self, work: Coroutine[Any, Any, A]) -> tuple[A | None, BaseException | None]:
        return await self.run.stopping.finalizing(work)

    async def protect(self, work: Coroutine[Any, Any, A]) -> tuple[A, BaseException | None]:
        with self.run.stopping.gated():
            return await work, None
        raise AssertionError("a scope that is not cancelled continues")

    def compensation_failed(self, error: object, left: Callable[[], Sequence[str]]) -> None:
        if self.is_recording:
            run = self.run
            raise run.stopping.give_up(CompensationFailed(run.run_id, safe_repr(error), left()))

    def finalization(self, name: str) -> Finalization | None:
        return DurableFinalization(self, self.next_path(name))

    def inner(self, path: str, *, branches: DurableBranches | None = None) -> DurableFlow:
        """Return the flow of a branch of an operator, or of a finalizer."""
        return DurableFlow(
            self.run,
            path,
            self,
            branches=branches,
            is_recording=self.is_recording,
            is_ordered=self.is_ordered,
        )

    def body_of(
        self, path: str, *, is_ordered: bool = False, may_wait: bool = False
    ) -> DurableFlow:
        """Return the flow of the body of a step."""
        return DurableFlow(
            self.run,
            path,
            self,
            is_recording=may_wait and path in self.run.recording.waiting,
            is_ordered=is_ordered,
            may_wait=may_wait,
        )

    def come_to_finalizer(self, path: str) -> None:
        """Skip a recorded finalizer and the recorded operations before it."""
        recorded = self._recorded
        if recorded is None or not self.is_ordered:
            return
        paths = [item.path for item in recorded.items[self._cursor :]]
        if path in paths:
            self._cursor += paths.index(path) + 1
            self._open_gate_at_frontier()

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
        while not flow._has_others_ahead(limit, path, sequence):
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

    def _has_others_ahead(self, limit: float, path: str, sequence: int) -> bool:
        """Return whether other operations than this one are recorded, and follow its entry."""
        if self.is_ordered or self._recorded is None:
            return self.has_ahead(limit)
        return any(
            sequence < item.sequence < limit and item.path != path for item in self._recorded.items
        )

    def set_item(self, digest: str) -> None:
        """Set the digest of the flow's item, which its first entry records and a resume compares."""
        recorded = self._recorded
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
                f"two functions give steps of the name {name!r} to one flow of run "
                f"{self.run.run_id!r}, the last one is {qualified!r}: rename one of them, as a resume "
                "could not tell them apart"
            )
