"""The common part of operators that cancel flows: timeouts, races, parallel operators.

An operator decides once, before the decision takes effect. A flow that is about to begin a step checks
whether an operator around it has decided, and does not begin the step then. A cancellation alone would
come too late if two flows wake up in the same turn of the event loop.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import anyio

from effectflow.effects.effect import Effect
from effectflow.effects.errors import Parked
from effectflow.effects.interpreter import interpret
from effectflow.effects.scope import PLAIN, PLAIN_BRANCHES, Branches, Decision, Scope

__all__ = ["Operator"]


class Operator:
    """One run of an operator that may cancel the flows within it.

    Attributes:
        branches: the flows within it, and what is recorded of them.
        is_decided: whether it has decided, in this life or an earlier one.
        outer: the scope around it.
        inside: the scope within it.
        limit: the cancel scope of a timeout, whose deadline may pass without a call of `decide`.
        unfinished: the defect of a cancelled body that had not ended.
    """

    __slots__ = ("branches", "inside", "is_decided", "limit", "outer", "unfinished")

    def __init__(
        self, outer: Scope, branches: Branches, *, limit: anyio.CancelScope | None = None
    ) -> None:
        self.branches = branches
        self.is_decided = branches.decision is not None
        self.limit = limit
        self.unfinished: Exception | None = None
        self.outer = outer
        self.inside = outer.under(self)
        if branches.decision is not None:
            self.inside.limit = min(self.inside.limit, branches.decision.sequence)

    @staticmethod
    def begin(outer: Scope, name: str) -> Operator:
        """Return the next operator with this name in a flow."""
        return Operator(outer, outer.flow.branches(outer, name))

    @staticmethod
    def unrecorded(outer: Scope, limit: anyio.CancelScope) -> Operator:
        """Return an operator that cancels by a deadline, and that a resume need not know."""
        return Operator(outer, PLAIN_BRANCHES, limit=limit)

    @property
    def decision(self) -> Decision | None:
        """The decision of an earlier life, or None."""
        return self.branches.decision

    def branch(self, key: object, item: object = None, *, is_keyed: bool = True) -> Scope:
        """Return the scope of one branch."""
        flow = self.branches.branch(key, item, is_keyed=is_keyed)
        return self.inside if flow is PLAIN else self.inside.in_flow(flow)

    def deciding_branch(self, key: object, item: object = None, *, is_keyed: bool = True) -> Scope:
        """Return the scope of a branch that led to the recorded decision, which does not cancel it."""
        scope = self.branch(key, item, is_keyed=is_keyed).copy()
        scope.operators = self.outer.operators
        return scope

    async def run_branch(self, effect: Effect[Any, Any, Any], env: Any, scope: Scope) -> Any:
        """Return the outcome of a branch; `scope` is that of `branch`."""
        if scope.flow is PLAIN:
            return await interpret(effect, env, scope)
        return await scope.flow.run_branch(scope, partial(interpret, effect, env, scope))

    async def run_cancelled(self, effect: Effect[Any, Any, Any], env: Any, scope: Scope) -> None:
        """Complete the finalizers of a branch that an earlier life cancelled.

        The branch replays the entries before the decision and is cancelled then. In a plan, it ends at
        the step of a finalizer that a resume begins.
        """
        with anyio.CancelScope() as cancelled:
            cancelled.cancel()
            try:
                await self.run_branch(effect, env, scope)
            except Parked as parked:
                if parked.reason is None:
                    raise

    def decide(self, value: object, *, failed: bool) -> None:
        """Decide, unless a decision exists. Call this before cancelling anything."""
        if self.is_decided:
            return
        if anyio.current_effective_deadline() == -math.inf:
            # A branch ended in spite of a cancellation: record the cause of that first.
            self.outer.cause()
        self._decide(value, failed=failed)

    def has_expired(self) -> bool:
        """Return whether the deadline has passed and cancels the branches."""
        return self.limit is not None and self.limit.cancel_called

    def expire(self) -> None:
        """Decide that the deadline has passed, unless a decision exists."""
        if not self.is_decided:
            self._decide(True, failed=True)

    def _decide(self, value: object, *, failed: bool) -> None:
        self.is_decided = True
        self.branches.decide(value, failed=failed)

    def end(self) -> None:
        """Record that all branches have ended, including their finalizers."""
        self.branches.end(is_complete=self.unfinished is None)
