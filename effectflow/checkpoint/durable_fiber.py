"""The fibers of a durable run: what they do has a path, and a place in the order of the run."""

from __future__ import annotations

import math
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Sequence,
)
from functools import partial
from types import CoroutineType, coroutine
from typing import Any, Never, TypeVar, cast

import anyio
from anyio.lowlevel import checkpoint

from effectflow.checkpoint import waits
from effectflow.checkpoint.causes import Cause, Held
from effectflow.checkpoint.entries import BEGINNINGS, Local, Published, SetAside, Value
from effectflow.checkpoint.errors import CompensationFailed, DefinitionChanged
from effectflow.checkpoint.order import E, Kind
from effectflow.checkpoint.ordered_fiber import Intent, OrderedFiber
from effectflow.checkpoint.run import Run
from effectflow.checkpoint.shared_parts import LongOutput
from effectflow.checkpoint.step_execution import StepExecution
from effectflow.checkpoint.values import (
    NO_TYPES,
    KnownTypes,
    MalformedValue,
    from_tree,
    of_type,
    safe_repr,
    to_tree,
)
from effectflow.effects.arguments import BaseEffect
from effectflow.effects.coroutines import ENDED, advanced, driven, end_coroutine
from effectflow.effects.errors import Parked
from effectflow.effects.event_loop import (
    Waiter,
    is_cancellation,
    raise_caught_cancellation,
    stray_cancellation,
    wake,
)
from effectflow.effects.nodes import Step
from effectflow.effects.paths import child_path, step_path
from effectflow.effects.scope import Operator, Scope

A = TypeVar("A")


class DurableFiber(OrderedFiber):
    """One sequential line of a durable run.

    Attributes:
        run, turns: the run, and the order of its life.
        path: that of the innermost step that it is in, or of its line outside of steps.
        output: what its newest step yielded.
    """

    __slots__ = (
        "_around",
        "_codes",
        "_counts",
        "long_output",
        "output",
        "path",
        "run",
        "turns",
    )

    def __init__(self, run: Run, parent: DurableFiber | None = None) -> None:
        super().__init__(parent)
        self.run = run
        self.turns = run.turns
        self.path = "" if parent is None else parent.path
        self._counts: dict[str, int] = {}
        self._codes: dict[str, object] = {}
        self._around: list[tuple[Any, ...]] = []
        self.long_output: LongOutput | None = None
        self.output: object = None
        self.turns.fibers[self] = None

    @property
    def is_stopping(self) -> bool:
        return self.turns.is_over

    @property
    def is_unordered(self) -> bool:
        return self.turns.is_unordered

    @property
    def begins_anew(self) -> bool:
        return self.turns.replay.next_entry is None

    @property
    def started_version(self) -> str | None:
        return self.run.started_version

    def stop(self) -> None:
        self.run.stopping.begin()

    def save(self, scope: Scope, *, required: bool) -> Coroutine[Any, Any, object]:
        """Save what the run has recorded, together with what other fibers record in this turn."""
        turns = self.turns
        if turns.is_unordered and not turns.is_over:
            return self.run.writer.save(required=required)
        return self._save_together(scope, required=required)

    async def _save_together(self, scope: Scope, *, required: bool) -> None:
        if self.turns.is_over:
            await self.run.writer.save(required=required)
        else:
            await self.turns.save(self, scope, required=required)
        # What has begun is not left to another worker.
        await self.check(scope, has_begun=True)

    async def save_now(self, reason: str) -> None:
        if self.run.planning is None:
            await self.run.writer.save(reason=reason)

    # Paths.

    def goes_on(self) -> None:
        """Take the cancellation of the run, if it came where the body was until now."""
        run = self.run
        if (
            self.turns.order.is_cancelled
            and self is run.root
            and run.requests.cancellation is not None
        ):
            self.turns.replay.take_cancellation()

    def next_path(self, name: str, was: tuple[str, ...] = ()) -> str:
        if not self.turns.is_live:
            self.goes_on()
        if was:
            name = next(filter(self._is_recorded, was), name)
        count = self._counts.get(name, 0) + 1
        self._counts[name] = count
        self.place = path = step_path(self.path, name, count)
        return path

    def _is_recorded(self, name: str) -> bool:
        """Return whether the next operation with this name has begun in an earlier life."""
        order = self.turns.order
        path = step_path(self.path, name, self._counts.get(name, 0) + 1)
        return path in order.begun or path in order.children or path in order.places

    def enter_step(self, path: str) -> tuple[Any, ...]:
        """Begin the body of a step. Return what to pass to `leave_step`."""
        outer = self.path, self.step, self._counts, self._codes
        self.path, self.step, self._counts, self._codes = path, path, {}, {}
        return outer

    def leave_step(self, outer: tuple[Any, ...]) -> None:
        """End the body of a step."""
        # A resume does not enter it again.
        self.place = self.path
        self.path, self.step, self._counts, self._codes = outer

    def check_function(self, name: str, code: object, qualified: str) -> None:
        """Raise TypeError if another function has given a step here the same name."""
        known = self._codes.setdefault(name, code)
        if known is not code:
            raise TypeError(
                f"two functions give the name {name!r} to steps of one fiber of run "
                f"{self.run.run_id!r}; the last one is {qualified!r}. Rename one of them, because a "
                "resume could not tell them apart"
            )

    # The recorded entries of an operation.

    async def reach_begin(self, path: str, scope: Scope, kind: Kind[E]) -> E | None:
        """Return the recorded beginning of an operation, in its place; None if it is not recorded.

        `kind` is the class of its entry.
        """
        turns = self.turns
        at = turns.replay.next_at(path)
        if at is None or not isinstance(turns.order.entries[at], BEGINNINGS):
            return None
        # A cancellation that comes in between did not lead to it.
        causes = self.open_failures()
        entry = await turns.replay.take(self, at, scope, kind)
        self.begins(causes)
        return entry

    async def reach_end(self, path: str, scope: Scope, kind: Kind[E]) -> E | None:
        """Return the recorded end of an operation, in its turn; None if it is not recorded.

        `kind` is the class of its entry, or several.
        """
        turns = self.turns
        at = turns.replay.next_at(path)
        if at is None:
            return None
        number = turns.order.numbers[at]
        entry = await turns.replay.take(self, at, scope, kind)
        self.follows(path, number)
        return entry

    async def record_once(
        self, path: str, scope: Scope, kind: type[E], make: Callable[[], E]
    ) -> bool:
        """Record an operation that has no end. Return False if an earlier life has.

        `kind` is the class of its entry, and `make` returns the entry.
        """
        await self.check(scope)
        if await self.reach_begin(path, scope, kind) is not None:
            return False
        await self.turns.to_frontier(self, scope, Intent.BEGIN)
        entry = make()
        self.begins()
        self.run.add(entry, self.step)
        return True

    # Failures.

    def begins(self, causes: Iterable[Cause] | None = None) -> None:
        """Note that something durable begins: the failures that led to it stand.

        Halts the run if a resume could not rebuild one of them.
        """
        for cause in self.failures if causes is None else causes:
            if not cause.stands:
                if cause.unreadable is not None:
                    raise self.run.halt(cause.unreadable)
                cause.stand()

    # What it does.

    async def check(self, scope: Scope, *, has_begun: bool = False) -> None:
        """Raise what ends the fiber: a cancellation, or the end of this life.

        `has_begun` says whether a step goes on that has begun in this life.
        """
        run = self.run
        if run.writer.halted is not None:
            run.writer.check()
        if not self.turns.is_live:
            self.goes_on()
        if scope.operators:
            operator = scope.cancelling_operator()
            if operator is not None:
                await self.leave_for(operator)
        if self.turns.is_over:
            await run.leave(scope)
        is_draining = run.ends_at_rest is not None or (
            run.drain is not None and run.drain.has_begun
        )
        if (
            is_draining
            and self.turns.is_live
            and not (has_begun or scope.is_shielded or scope.is_at_most_once)
        ):
            await waits.leave_to_another_worker(self, scope)

    async def leave_for(self, operator: Operator) -> Never:
        """Raise the cancellation by an operator, which has decided."""
        self.adopt(operator)
        await anyio.sleep_forever()
        raise AssertionError("this wait has no end")

    def execute(self, step: Step, env: Any, scope: Scope) -> Coroutine[Any, Any, object]:
        return StepExecution(self, step, env, scope).outcome()

    async def wait(self, scope: Scope, work: Callable[..., Awaitable[A]], *arguments: Any) -> A:
        if self.turns.is_unordered:
            self.next_path("local")
            return await work(*arguments)
        await self.begin_local(scope, work)
        body = _awaited(work, arguments)
        effect, value = await self.run_local(scope, body, partial(body.send, None))
        if effect is not ENDED:
            end_coroutine(body)
            raise RuntimeError(
                f"{effect!r} cannot be awaited here: {work!r} is not the code of an effect"
            )
        return value

    async def begin_local(self, scope: Scope, work: object) -> None:
        if scope.is_planned:
            await self.park(scope, f"{work!r} would be awaited")
        self.goes_on()
        operator = None if self.turns.is_over else scope.cancelling_operator()
        if operator is not None:
            await self.leave_for(operator)

    def continues_freely(self) -> bool:
        if not self.turns.is_unordered:
            return False
        self.next_path("local")
        return True

    async def run_local(
        self, scope: Scope, body: Coroutine[Any, Any, Any], resume: Callable[[], Any]
    ) -> tuple[Any, Any]:
        if self.continues_freely():
            return await advanced(body, resume)
        turns = self.turns
        path = self.next_path("local")
        is_alone, at = turns.is_alone, turns.replay.next_at(path)
        effect: Any = None
        value: Any = None
        raised: BaseException | None = None
        has_waited = False
        try:
            try:
                effect, value = resume(), False
                if not isinstance(effect, BaseEffect):
                    has_waited = True
                    if scope.is_planned:
                        end_coroutine(body)
                        await self.park(scope, f"{body.__qualname__!r} would go on")
                    effect, value = await self.released(driven(body, effect), scope)
            except StopIteration as stop:
                effect, value = ENDED, stop.value
            except BaseException as error:
                raised = stray_cancellation(error) or error
                if isinstance(raised, GeneratorExit | Parked):
                    raise
                if is_cancellation(raised):
                    scope.cause()
                elif scope.hides_stop(raised):
                    await raise_caught_cancellation()
            await self._end_local(scope, path, at, raised, is_alone=is_alone, has_waited=has_waited)
            if raised is not None:
                raise raised
            return effect, value
        except BaseException:
            end_coroutine(body)
            raise
        finally:
            # Its traceback keeps this frame.
            del raised

    async def _end_local(
        self,
        scope: Scope,
        path: str,
        at: int | None,
        raised: BaseException | None,
        *,
        is_alone: bool,
        has_waited: bool,
    ) -> None:
        """Wait for the turn of the end of local code, if that is an event."""
        turns = self.turns
        end = _end_of(raised, scope)
        if turns.is_over:
            return
        if at is not None:
            number = turns.order.numbers[at]
            recorded = await turns.replay.take(self, at, scope, Local, may_end=True)
            if not turns.is_over:
                await self._note_local(scope, path, number, recorded.end, end, raised)
        elif not has_waited:
            # It did not give up the baton, so it goes on in the same turn.
            pass
        elif is_alone:
            # Its end is not recorded, as nothing else could have happened meanwhile.
            if turns.holder is not self:
                turns.make_ready(self)
                turns.pass_on()
            await turns.regain(self, scope, may_end=True)
        else:
            is_ended = scope.step is not None and raised is None
            await turns.arrive(self, scope, may_end=True, is_ended=is_ended)
            if not turns.is_over:
                entry = Local(path, self.run.now(), end, turns.turn)
                # An end in a replay that is not recorded is none yet.
                held = self.run.hold(entry, self.step) if turns.is_live else None
                await self._note_local(scope, path, held, end, end, raised)

    async def _note_local(
        self,
        scope: Scope,
        path: str,
        number: int | Held | None,
        was: str,
        end: str,
        raised: BaseException | None,
    ) -> None:
        """Go on after the end of local code, in its turn.

        `was` is how it ended in the life that recorded it with this number, which decides.
        """
        operator = scope.cancelling_operator()
        if operator is not None:
            self.adopt(operator)
        if number is not None:
            self.follows(path, number)
        if operator is not None and "cut" in (end, was):
            if raised is None or isinstance(raised, Exception):
                await self.leave_for(operator)
        elif was == end:
            if end == "failed" and number is not None:
                self.failures.append(Cause((path, number)))
        elif isinstance(raised, Exception) and end == "failed":
            # It may succeed in another life, so the journal stays as it is.
            raise self.run.cut_short(raised)
        elif was != "cut" and not self.run.force:
            # What cut it off may be corrected. Then nothing that followed from it may be recorded.
            run = self.run
            detail = (
                f"{path!r} (async code outside of steps) {_ENDS[was]} when it ran before, and now "
                f"{_ENDS[end]}"
            )
            raise run.halt(DefinitionChanged(run.run_id, run.workflow, detail=detail))

    async def breathe(self, scope: Scope) -> None:
        if self.turns.is_live:
            await self.unrecorded(scope, checkpoint())
        else:
            # What is recorded comes first, and finds this fiber ready to go on.
            await checkpoint()
            await self.turns.arrive(self, scope)

    @coroutine
    def released(self, work: Awaitable[A], local: Scope | None = None) -> Generator[Any, Any, A]:
        """Await a coroutine. The fiber gives up the baton once it really waits.

        In an exploration, local code, whose position is `local`, goes on in a new turn after each wait.
        """
        turns = self.turns
        work = cast("Coroutine[Any, Any, A]", work)
        try:
            wanted = work.send(None)
        except StopIteration as stop:
            return stop.value
        turns.working[self] = None
        turns.release(self)
        try:
            while True:
                try:
                    sent = yield wanted
                    if local is not None and turns.is_live and turns.explore is not None:
                        # What it has waited for has happened, so a cancellation comes too late.
                        with anyio.CancelScope(shield=True):  # noqa: ASYNC100  # it does wait
                            yield from turns.arrive(self, local, may_end=True).__await__()
                except BaseException as raised:
                    wanted = work.throw(raised)
                else:
                    wanted = work.send(sent)
                if turns.holder is self:
                    turns.release(self)
        except StopIteration as stop:
            return stop.value
        finally:
            del turns.working[self]

    async def unrecorded(self, scope: Scope, work: Coroutine[Any, Any, A]) -> A:
        """Await work whose end is not recorded, such as a save. The fiber goes on in another turn."""
        if self.turns.is_unordered:
            return await work
        try:
            return await self.released(work)
        except BaseException as raised:
            if is_cancellation(raised):
                scope.cause()
            raise
        finally:
            await self.turns.arrive(self, scope)

    def value(
        self, name: str, kind: object, compute: Callable[[], A], *, is_tentative: bool = False
    ) -> A:
        run = self.run
        path = self.next_path(name)
        known = self.turns.order.values
        if path in known:
            number, tree = known[path]
            try:
                return of_type(from_tree(tree, types=NO_TYPES), kind)
            except MalformedValue as error:
                raise run.halt_at(number, "Value", path) from error
        value = compute()
        if run.planning is None:
            entry = Value(path, to_tree(value, path=path, types=NO_TYPES), run.now())
            record = run.hold if is_tentative else run.record
            self.follows(path, record(entry, self.step))
        return value

    def sleep(self, scope: Scope, seconds: float) -> CoroutineType[Any, Any, None]:
        if seconds > 0:
            return waits.sleep_until(self, scope, partial(self.run.time_after, seconds), seconds)
        return self.wait(scope, scope.clock.sleep, seconds)

    def sleep_until(
        self, scope: Scope, until: float, longest: float
    ) -> CoroutineType[Any, Any, None]:
        return waits.sleep_until(self, scope, lambda: until, longest)

    async def publish(self, scope: Scope, key: str, value: object, types: KnownTypes) -> None:
        """Record a value for others to read: once between steps, and in each attempt of a step."""
        run = self.run
        if self.step:
            if run.planning is None and not self.is_stopping:
                tree = run.encode(value, f"{self.path}/publish", types)
                run.writer.add(Published("", key, tree, run.now()))
                run.writer.announce()
            return
        path = self.next_path("publish")

        def published() -> Published:
            tree = run.encode(value, path, types)
            return Published(path, key, tree, run.now(), self.turns.turn)

        if await self.record_once(path, scope, Published, published):
            run.writer.announce()

    async def set_aside(self, scope: Scope, name: str, content: Callable[[], Any]) -> bool:
        """Let the failures here stand, and record what failed. Return whether it still counts."""
        run = self.run
        path = self.next_path(name)

        def aside() -> SetAside:
            return SetAside(path, content(), run.now(), self.turns.turn)

        if await self.record_once(path, scope, SetAside, aside):
            run.writer.count_dead_letter()
            return True
        return not self.turns.order.set_aside[path].is_dropped

    async def park(self, scope: Scope, reason: str) -> Never:
        if self.run.planning is not None:
            self.run.planning.park(reason)
        self.turns.release(self)
        await self.turns.regain(self, scope)
        raise AssertionError("a plan does not go on from here")

    # Operators.

    def branch(self) -> DurableFiber:
        child = DurableFiber(self.run, self)
        if self.branches is None:
            self.branches = {}
        self.branches[child] = None
        self.turns.make_ready(child)
        return child

    async def begin(self, scope: Scope) -> None:
        # The branches of a finalizer also run while the run is being stopped.
        await self.turns.regain(self, scope, may_end=scope.is_shielded)

    def end(self) -> None:
        del self.turns.fibers[self]
        if self.parent is not None and self.parent.branches is not None:
            del self.parent.branches[self]
        self.turns.release(self)

    def enter(self, operator: Operator, key: object) -> None:
        self._around.append(
            (self.line, self.path, self._counts, self._codes, self.failures, self.fork)
        )
        self.line = self.path = child_path(operator.path, key)
        self._counts, self._codes = {}, {}
        self.fork = operator
        owner = operator.outer.fiber
        if isinstance(owner, DurableFiber):
            self.failures = owner.open_failures()
        self.turns.branches.begin(operator, self.line)

    def items_to_record(self) -> int | None:
        """Return the number of branches beside this one, for the first of their steps in this life."""
        if self.fork is None or self.path != self.line:
            return None
        items, self.fork.total = self.fork.total, None
        return items

    def leave(self, operator: Operator, *, has_failed: bool) -> None:
        if has_failed:
            self.unwinds()
        operator.collected += self.failures
        own = self.failures
        self.line, self.path, self._counts, self._codes, self.failures, self.fork = (
            self._around.pop()
        )
        # What follows in this task, such as a group of values, may decide because of them.
        self.failures = own
        if self.has_place:
            self.turns.branches.give_place(operator)
        self.has_place = True

    def decides(self, operator: Operator, *, has_failed: bool) -> None:
        if has_failed:
            self.unwinds()
            operator.causes = self.open_failures()
        else:
            # A success that cancels others is final. The failures before the operator are not its own.
            inherited = self._failures_before(operator)
            for cause in self.open_failures():
                if cause not in inherited:
                    cause.stand()

    def _failures_before(self, operator: Operator) -> list[Cause]:
        """Return the failures with which this branch of an operator began."""
        owner = operator.outer.fiber
        if owner is self:
            return self._around[-1][4] if self._around else []
        return owner.open_failures() if isinstance(owner, OrderedFiber) else []

    def awaits_steps(self, operator: Operator) -> bool:
        inside = f"{operator.path}["
        return any(fiber.step.startswith(inside) for fiber in self.turns.fibers)

    def cancels(self) -> None:
        self.turns.wake_cancelled(self)

    def joins(self, operator: Operator) -> None:
        known = operator.causes if operator.is_decided else operator.collected
        self.failures += [cause for cause in known if cause not in self.failures]
        self.turns.branches.end(operator.path)

    async def rest(self, scope: Scope, waiter: Waiter, *, has_raised: bool = False) -> None:
        turns, operator = self.turns, scope.operators[-1]
        self.place = f"{operator.path}[{operator.read}]"
        if not turns.is_over:
            turns.release(self)
            await turns.regain(self, scope, may_end=True)
        if not turns.is_over:
            await anyio.lowlevel.checkpoint_if_cancelled()
        elif not has_raised:
            await waiter

    def wake(self, waiter: Waiter) -> None:
        self.turns.make_ready(self)
        wake(waiter)

    def deadline(self, operator: Operator, seconds: float) -> waits.Deadline | None:
        has_none = math.isinf(seconds) and operator.path not in self.turns.order.values
        return None if has_none or self.turns.is_over else waits.Deadline(self, operator, seconds)

    def supervise(self, work: Callable[[], Coroutine[Any, Any, A]]) -> Coroutine[Any, Any, A]:
        return self.run.stopping.supervised(work)

    async def shield(
        self, work: Coroutine[Any, Any, A], *, is_kept: bool = True
    ) -> tuple[A, BaseException | None]:
        stopping = self.run.stopping
        return await (stopping.shielded(work) if is_kept else stopping.protected(work))

    def undo_failed(self, error: object, left: Callable[[], Sequence[str]]) -> None:
        run = self.run
        raise run.fail(CompensationFailed(run.run_id, safe_repr(error), left()), self)


_ENDS = {"ok": "succeeded", "failed": "failed", "cut": "was cancelled"}


def _end_of(raised: BaseException | None, scope: Scope) -> str:
    """Return how local code has ended. What fails because it was cancelled was cut off."""
    if raised is None:
        return "ok"
    if not isinstance(raised, Exception) or scope.cancelling_operator() is not None:
        return "cut"
    return "failed"


async def _awaited(work: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]) -> Any:
    return await work(*arguments)
