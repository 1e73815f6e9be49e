"""What operators that cancel flows have in common: timeouts, races, parallel operators.

An operator decides once, before the decision takes effect: a flow that is about to begin a step looks
whether an operator around it has decided, and does not begin it. A cancellation alone would come too late
where two flows wake up in the same turn of the event loop.
"""

from __future__ import annotations

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
        limit: the cancel scope of a timeout, whose deadline decides without asking.
        unfinished: the defect of a body that it has cancelled, and that had something left to do.
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
        """Return the operator of this name that comes next in a flow."""
        return Operator(outer, outer.flow.branches(outer, name))

    @staticmethod
    def unrecorded(outer: Scope, limit: anyio.CancelScope) -> Operator:
        """Return an operator that cancels by a deadline, and of which a resume needs to know nothing."""
        return Operator(outer, PLAIN_BRANCHES, limit=limit)

    @property
    def decision(self) -> Decision | None:
        """What an earlier life decided."""
        return self.branches.decision

    def branch(self, key: object, item: object = None, *, is_keyed: bool = True) -> Scope:
        """Return the scope of one branch."""
        flow = self.branches.branch(key, item, is_keyed=is_keyed)
        return self.inside if flow is PLAIN else self.inside.in_flow(flow)

    def deciding_branch(self, key: object, item: object = None, *, is_keyed: bool = True) -> Scope:
        """Return the scope of a branch that led to the decision of an earlier life: it is not cancelled."""
        scope = self.branch(key, item, is_keyed=is_keyed).copy()
        scope.operators = self.outer.operators
        return scope

    async def run_branch(self, effect: Effect[Any, Any, Any], env: Any, scope: Scope) -> Any:
        """Return the outcome of a branch; `scope` is that of `branch`."""
        if scope.flow is PLAIN:
            return await interpret(effect, env, scope)
        return await scope.flow.run_branch(scope, partial(interpret, effect, env, scope))

    async def run_cancelled(self, effect: Effect[Any, Any, Any], env: Any, scope: Scope) -> None:
        """Complete the finalizers of a branch that an earlier life has cancelled.

        The branch replays what was recorded before the decision, and is cancelled then. A plan stops at the
        step of a finalizer that a resume begins.
        """
        with anyio.CancelScope() as cancelled:
            cancelled.cancel()
            try:
                await self.run_branch(effect, env, scope)
            except Parked as parked:
                if parked.reason is None:
                    raise

    def decide(self, value: object, *, failed: bool) -> None:
        """Decide, unless that was done. Call it before anything is cancelled."""
        if not self.is_decided:
            self.is_decided = True
            self.branches.decide(value, failed=failed)

    def has_expired(self) -> bool:
        """Return whether the deadline has passed and cancels the branches."""
        return self.limit is not None and self.limit.cancel_called

    def expire(self) -> None:
        """Decide that the deadline has passed, unless something was decided."""
        self.decide(True, failed=True)

    def end(self) -> None:
        """Say that all branches have ended, finalizers included."""
        self.branches.end(is_complete=self.unfinished is None)
