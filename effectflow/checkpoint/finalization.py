"""Finalizers in a durable run, and how their sources ended."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from effectflow.checkpoint.entries import SourceEnd
from effectflow.checkpoint.errors import NotSerializable
from effectflow.checkpoint.failures import read_failure, write_end, write_error
from effectflow.effects.scope import PLAIN_BRANCHES, Operator, Replayed, Scope
from effectflow.effects.trails import TypedFailure

if TYPE_CHECKING:
    from effectflow.checkpoint.flow import DurableFlow

A = TypeVar("A")


class DurableFinalization:
    """The place of one finalizer in a durable flow.

    Attributes:
        outer: the flow of its source.
        path: the path of the finalizer.
        unreadable: why the recorded end of the source cannot be rebuilt; None if it can, or is not
            recorded.
    """

    def __init__(self, outer: DurableFlow, path: str) -> None:
        self.outer = outer
        self.path = path
        self.unreadable: NotSerializable | None = None
        self._flow: DurableFlow | None = None

    async def recorded_end(
        self, scope: Scope, replay: Callable[[Scope], Coroutine[Any, Any, Any]]
    ) -> Any:
        run = self.outer.run
        recorded = run.recording.source_ends.get(self.path)
        if recorded is None:
            return None
        if recorded.error is None:
            if recorded.kind != "cancelled":
                self.outer.begun_finalizers += (self,)
            return None
        # No entry records the error. If the source ran again after the release of its resource, it
        # could end differently. So it does not run.
        try:
            failure = read_failure(recorded.error, self.path, run.types)
        except NotSerializable as unreadable:
            # Its class is not declared. The source runs without beginning anything, and must end with
            # the same error.
            self.unreadable = unreadable
            self.outer.begun_finalizers += (self,)
            return None
        if scope.undos is not None:
            await self._register_undos(scope, replay)
        self.outer.skip_to(recorded.reached)
        failure = run.replayed_failure(self.path, failure)
        if recorded.kind == "defect":
            raise failure.error
        return failure

    async def _register_undos(
        self, scope: Scope, replay: Callable[[Scope], Coroutine[Any, Any, Any]]
    ) -> None:
        """Replay the recorded part of the source, so that the saga around it knows what to undo."""
        outer = self.outer
        first = outer.run.recording.flows[self.path].items[0]
        operator = Replayed(scope, PLAIN_BRANCHES)
        operator.is_decided = True
        inside = operator.inside
        inside.limit = min(inside.limit, first.sequence)
        # The journal has the end of the source, so an error of this replay does not matter.
        with operator.cut, outer.kept_place(), suppress(Exception):
            await replay(inside)

    async def run(self, work: Coroutine[Any, Any, A]) -> tuple[A | None, BaseException | None]:
        try:
            return await self.outer.finalize(work, self._flow)
        finally:
            if self._flow is not None:
                self.outer.unsettled += self._flow.unsettled

    def scope(self, outer: Scope, ended: object, cause: Operator | None) -> Scope:
        run = self.outer.run
        flow = self._flow = self.outer.inner(self.path)
        recorded = run.recording.source_ends.get(self.path)
        if recorded is None:
            flow.source_end = lambda: self._source_end(ended, cause)
        else:
            begun = self.outer.begun_finalizers
            if self in begun:
                self.outer.begun_finalizers = begun[: begun.index(self)]
            if self.unreadable is not None and not self._is_same_end(recorded, ended):
                raise run.writer.halt(self.unreadable)
            if self.outer.cursor is not None:
                self.outer.cursor.pass_finalizer(self.path)
        scope = outer.shielded()
        scope.flow = flow
        scope.is_observing = True
        return scope

    def _is_same_end(self, recorded: SourceEnd, ended: object) -> bool:
        """Return whether the source failed as it did in its first life."""
        error = ended.error if isinstance(ended, TypedFailure) else None
        again, known = write_error(error, self.outer.run.types, is_defect=False), recorded.error
        return known is not None and (again.type, again.message) == (known.type, known.message)

    def _source_end(self, ended: object, cause: Operator | None) -> SourceEnd:
        run, path = self.outer.run, self.path
        if cause is not None:
            return SourceEnd(path, "cancelled", run.entry_of(cause))
        if isinstance(ended, TypedFailure):
            kind, error = "failure", ended.error
        elif isinstance(ended, Exception):
            kind, error = "defect", ended
        else:
            return SourceEnd(path, "success")
        known = self.outer.last_failure
        if known is not None and known[0] is error:
            return SourceEnd(path, kind, known[1])
        return SourceEnd(path, kind, None, write_end(ended, run.types), self.outer.reached())
