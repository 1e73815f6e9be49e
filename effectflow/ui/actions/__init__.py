"""What people do to runs: each action shows what will happen, asks what it needs, and then acts."""

from __future__ import annotations

from collections.abc import Mapping

from effectflow.observe.explanation import Explanation
from effectflow.ui.actions.action import Action
from effectflow.ui.actions.answering import SIGNAL
from effectflow.ui.actions.crash_test import CRASH_TEST
from effectflow.ui.actions.dead_letters import DEAD_LETTERS
from effectflow.ui.actions.forking import FORK, RERUN
from effectflow.ui.actions.settling import COMPLETE_STEP, FAIL_STEP
from effectflow.ui.actions.steering import CANCEL, DELETE, PAUSE, RETRY, UNPAUSE

ACTIONS: Mapping[str, Action] = {
    action.name: action
    for action in (
        SIGNAL,
        RETRY,
        COMPLETE_STEP,
        FAIL_STEP,
        DEAD_LETTERS,
        UNPAUSE,
        PAUSE,
        CANCEL,
        FORK,
        RERUN,
        DELETE,
        CRASH_TEST,
    )
}
"""All actions by name, those first that a run needs most when it is offered them."""


def offered(explanation: Explanation) -> tuple[Action, ...]:
    """Return the actions that are possible on a run in its state."""
    return tuple(action for action in ACTIONS.values() if not action.why_not(explanation))
