"""Tell the observers of a run what happens on the way through a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from returns.result import Result, Success

from effectflow.checkpoint.events import CycleDetected, EdgeEvaluated, NodeEnded, NodeStarted
from effectflow.checkpoint.live_run import LiveRun
from effectflow.effects import Effect, Exit, Interruption
from effectflow.effects.nodes import FromFn, OnExit, Suspend
from effectflow.effects.scope import Scope
from effectflow.workflows.graph.structure import Edge, Node

__all__ = ["Watch"]

AnyEffect = Effect[Any, Any, Any]


class Watch:
    """Watches one way through a graph. What a resume skips is not told again."""

    def __init__(self, graph: str, run: LiveRun) -> None:
        self._graph = graph
        self._run = run
        self._has_run_a_node = False

    @staticmethod
    def of(graph: str, scope: Scope) -> Watch | None:
        """The watch over a graph that is run in this scope; None if there is nobody to tell."""
        run = scope.recorder
        return Watch(graph, run) if isinstance(run, LiveRun) and run.checkpoints.observers else None

    def over(self, node: Node, visit: int, work: AnyEffect) -> AnyEffect:
        """The work of one visit, with its beginning and its end told."""

        def begin(scope: Scope) -> AnyEffect:
            self._has_run_a_node = True
            place = (self._run.run_id, self._graph, node.name, visit, scope.path)
            if visit > 1:
                self._run.notify(CycleDetected(*place))
            self._run.notify(NodeStarted(*place))

            def end(ended: Exit[Any, Any]) -> AnyEffect:
                return FromFn(lambda _: self._run.notify(NodeEnded(*place, _outcome(ended))))

            return OnExit(work, end)

        return Suspend(begin)

    def report(self) -> Callable[[Edge, bool], None] | None:
        """What to tell of each edge out of the node that has completed; None if it was skipped."""
        if not self._has_run_a_node:
            return None
        self._has_run_a_node = False
        return self._evaluated

    def _evaluated(self, edge: Edge, is_taken: bool) -> None:
        self._run.notify(
            EdgeEvaluated(self._run.run_id, self._graph, edge.source, edge.target, is_taken)
        )


def _outcome(ended: Exit[Any, Any]) -> Any:
    if isinstance(ended, Result):
        return "completed" if isinstance(ended, Success) else "failed"
    return "interrupted" if isinstance(ended, Interruption) else "failed"
