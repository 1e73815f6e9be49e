"""Which attempt a run makes next, told from its checkpoint."""

from __future__ import annotations

from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.past import flow_of
from effectflow.effects.scope import step_path

__all__ = ["attempt_under_way", "next_path"]


def attempt_under_way(checkpoint: Checkpoint) -> str | None:
    """The path of the attempt that was begun last, if it is not completed.

    Guards that were mended since may have led past an earlier one, which then stays as it is.
    """
    # What goes on within an attempt is settled with it, also a step that failed and was handled.
    attempts = [path for path in checkpoint.metadata.attempts if not flow_of(path)]
    completed = {step.step for step in checkpoint.completed_steps}
    return attempts[-1] if attempts and attempts[-1] not in completed else None


def next_path(checkpoint: Checkpoint, transition: str) -> str:
    """The path of the next attempt at a transition: `charge`, then `charge#2`, `charge#3`, ..."""
    paths = checkpoint.metadata.attempts
    begun = sum(not flow_of(path) and path.partition("#")[0] == transition for path in paths)
    return step_path("", transition, begun + 1)
