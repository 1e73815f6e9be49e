"""Cancel a whole run: a message requests a decision, which cancels the body of the run."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from effectflow.checkpoint.branches import DurableBranches
from effectflow.checkpoint.entries import CancelRequested
from effectflow.checkpoint.flow import DurableFlow
from effectflow.checkpoint.recording import RecordedDecision
from effectflow.effects.scope import Operator, Scope
from effectflow.effects.trails import Suppressed


class Cancellation(Operator):
    """The operator around the body of a run. It decides when a message requests a cancellation.

    If an earlier life made that decision, the body is only replayed, to complete its finalizers.

    Attributes:
        cut: the cancel scope around the body.
    """

    __slots__ = ("cut",)

    def __init__(self, root: DurableFlow, scope: Scope) -> None:
        super().__init__(scope, _Body(root, scope))
        self.cut = anyio.CancelScope()
        if self.is_decided:
            self.cut.cancel()

    def request(self) -> None:
        """Cancel the body. Any flow within may call this, even one that is itself cancelled."""
        if not self.is_decided:
            self._decide(None, failed=False)
            self.cut.cancel()


class _Body(DurableBranches):
    """The body as the only branch, and the request to cancel it as the decision."""

    def __init__(self, root: DurableFlow, scope: Scope) -> None:
        super().__init__(root, "", scope)
        at = root.run.recording.cancelled_at
        if at is not None:
            self.sequence = at
            self.decision = RecordedDecision(at, None)

    def decide(self, value: object, *, failed: bool) -> None:
        run = self.outer.run
        if run.records:
            self.sequence = run.writer.add_to_opening(CancelRequested(run.now()))

    def end(self, *, is_complete: bool, suppressed: Sequence[Suppressed]) -> None:
        """Record nothing: the end of the run follows."""
