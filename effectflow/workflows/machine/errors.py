"""How a state machine fails.

::

    InvalidMachine       ValueError: the definition has faults; all of them are listed
    NoTransition         failure: nothing leads on from a state that is not final
    TransitionExhausted  failure (a RetryExhausted): `Retry` as often as the policy allows
    UndeclaredState      defect: an action gave a state that its transition does not lead to
"""

from __future__ import annotations

from collections.abc import Sequence

from effectflow.effects import RetryExhausted
from effectflow.workflows.machine.states import StateSet, name_of

__all__ = ["InvalidMachine", "NoTransition", "TransitionExhausted", "UndeclaredState"]


class InvalidMachine(ValueError):
    """The definition of a state machine has faults. `problems` lists all of them."""

    def __init__(self, machine: str, problems: Sequence[str]) -> None:
        self.machine = machine
        self.problems = tuple(problems)
        listed = "".join(f"\n  - {problem}" for problem in self.problems)
        super().__init__(f"state machine {machine!r} is not well defined:{listed}")


class NoTransition(Exception):
    """The machine stands at a state that is not final, and no transition may be taken from it.

    Attributes:
        state: where it stands.
        refused: the transitions that leave this state, and whose guards said no.
    """

    def __init__(self, state: object, refused: Sequence[str]) -> None:
        self.state = state
        self.refused = tuple(refused)
        guards = ", ".join(repr(name) for name in self.refused)
        reason = f"the guards of {guards} said no" if guards else "none is declared for it"
        super().__init__(f"no transition leads on from state {name_of(state)}: {reason}")


class TransitionExhausted(RetryExhausted[str]):
    """A transition was to be attempted again more often than its retry policy allows.

    The machine stands where it stood before the last attempt, so that stepping it again, or resuming
    its run, makes that attempt once more.

    Attributes:
        transition: which one.
        state: where the machine stands.
        error: the feedback of the last attempt.
        attempts: how many attempts were made.
        elapsed: seconds from the beginning of the first attempt to the end of the last.
    """

    def __init__(
        self, transition: str, state: object, feedback: str, attempts: int, elapsed: float
    ) -> None:
        super().__init__(feedback, attempts, elapsed)
        self.transition = transition
        self.state = state
        message = (
            f"transition {transition!r} from state {name_of(state)} was attempted {attempts} times "
            f"within {elapsed:.1f} s, and its policy allows no more; the last one said: {feedback}"
        )
        self.args = (message,)


class UndeclaredState(Exception):
    """An action gave a state that its transition does not declare: a fault of the code.

    Attributes:
        transition: whose action it was.
        outcome: what it gave, `Moved` or `Abort`.
        declared: the states that this transition may so lead to.
        actual: the state that was given.
    """

    def __init__(self, transition: str, outcome: str, declared: StateSet, actual: object) -> None:
        self.transition = transition
        self.outcome = outcome
        self.declared = declared
        self.actual = actual
        super().__init__(
            f"the action of transition {transition!r} gave {outcome} to {name_of(actual)}, and the "
            f"transition declares {declared}"
        )
