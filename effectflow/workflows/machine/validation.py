"""What is wrong with the definition of a state machine: everything that is certain, at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from effectflow.effects import RetryPolicy
from effectflow.workflows.checks import function_problems, step_name_problems
from effectflow.workflows.machine.binding import saved_types
from effectflow.workflows.machine.chart import Chart
from effectflow.workflows.machine.states import Atom, State, StateSet, covers, name_of
from effectflow.workflows.machine.transition import Transition

__all__ = ["problems_of"]

AnyTransition: TypeAlias = Transition[Any, Any, Any]


def problems_of(chart: Chart, retry: RetryPolicy, *, is_endless: bool) -> list[str]:
    """The problems of a definition.

    A class stands for states that are not known one by one, so only what holds for all of them counts.

    Parameters:
        chart: the definition.
        retry: what the machine retries by unless a transition says else.
        is_endless: whether the author has said that it has no final states.
    """
    problems = [*_unbounded(retry, "the machine")]
    if not chart.transitions:
        problems.append("it has no transitions")
    problems += _repeated(chart.transitions)
    for transition in chart.transitions:
        problems += _faults(transition)
    problems += _shadowed(chart.transitions)
    if _has_initial(chart):
        problems += _misplaced(chart)
    else:
        problems.append(
            "it has no initial state: `initial` must be one state, from which it begins"
        )
    if not chart.final and not is_endless:
        problems.append(
            "it has no final state, so every state is dead: say by `final` where it ends, or with "
            "final=None that it never does"
        )
    return [*problems, *_clashes(chart)]


def _clashes(chart: Chart) -> Iterator[str]:
    """Classes that what is saved could not tell apart."""
    try:
        saved_types(chart)
    except ValueError as error:
        yield str(error)


def _has_initial(chart: Chart) -> bool:
    """Whether there is an initial state. None is none, unless the definition uses it as a state."""
    initial = chart.initial
    if isinstance(initial.value, type):
        return False
    return initial.value is not None or _is_used(None, chart)


def _is_used(state: object, chart: Chart) -> bool:
    """Whether the definition names a state besides the initial one."""
    sets = [chart.final, *(states for part in chart.transitions for states in part.states)]
    return any(state in states for states in sets)


def _unbounded(policy: object, whose: str) -> Iterator[str]:
    if not isinstance(policy, RetryPolicy):
        yield f"the retry policy of {whose} is {policy!r}, which is no RetryPolicy"
    elif not policy.is_bounded:
        yield (
            f"the retry policy of {whose} has no bound: add with_max_retries(n), "
            "with_max_elapsed(seconds), or without_bound()"
        )


def _repeated(transitions: Sequence[AnyTransition]) -> Iterator[str]:
    names = [transition.name for transition in transitions]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield f"{names.count(name)} transitions are named {name!r}"


def _faults(transition: AnyTransition) -> Iterator[str]:
    """What is wrong with one transition by itself."""
    name = f"transition {transition.name!r}"
    yield from step_name_problems(transition.name)
    if transition.action is not None:
        takes = "a function from a state to an effect as its action"
        yield from function_problems(transition.action, name, takes)
    if transition.guard is not None:
        takes = "a function from a state to a bool as its guard"
        yield from function_problems(transition.guard, name, takes)
    if transition.retry is not None:
        yield from _unbounded(transition.retry, name)
    if not transition.source:
        yield f"{name} leaves no state"
    if not transition.target:
        yield f"{name} leads to no state"
    elif transition.action is None and _single(transition.target) is None:
        yield f"{name} has no action, so it must lead to one state, and it leads to {transition.target}"


def _single(states: StateSet) -> State | None:
    atom = states.atoms[0]
    return atom if len(states.atoms) == 1 and isinstance(atom, State) else None


def _shadowed(transitions: Sequence[AnyTransition]) -> Iterator[str]:
    """Transitions that are never attempted, since one before them always is."""
    for number, transition in enumerate(transitions):
        for earlier in transitions[:number]:
            if earlier.guard is None and transition.source and _within(transition, earlier):
                yield (
                    f"transition {transition.name!r} is never attempted: {earlier.name!r} comes "
                    "first, and has no guard"
                )
                break


def _within(transition: AnyTransition, earlier: AnyTransition) -> bool:
    """Whether every state that one transition leaves is left by the other."""
    return all(
        any(covers(outer, inner) for outer in earlier.source.atoms)
        for inner in transition.source.atoms
    )


def _misplaced(chart: Chart) -> Iterator[str]:
    """States that nothing leads to, or that lead nowhere."""
    yield from _leaving_final(chart)
    for transition in chart.transitions:
        for atom in transition.source.atoms:
            if not chart.places_of(StateSet([atom])):
                yield f"transition {transition.name!r} leaves {name_of(atom)}, which nothing leads to"
    for place in chart.places:
        if place not in chart.reachable:
            yield f"state {_shown(place)} is unreachable: nothing leads to it from the initial state"
        elif place in chart.final_places:
            continue
        elif not any(arrow.source == place for arrow in chart.arrows):
            if place not in chart.places_of(chart.final):
                yield f"state {_shown(place)} is dead: it is not final, and no transition leaves it"
        elif chart.final and place not in chart.ending:
            yield f"state {name_of(place)} is dead: no final state can be reached from it"


def _shown(place: Atom) -> str:
    """A place by name; one that was perhaps meant as several with a word on that."""
    if isinstance(place, State) and isinstance(place.value, frozenset):
        return f"{name_of(place)} (a frozenset is one state, and several are named by a set)"
    return name_of(place)


def _leaving_final(chart: Chart) -> Iterator[str]:
    for transition in chart.transitions:
        for atom in transition.source.atoms:
            if any(covers(final, atom) for final in chart.final.atoms):
                yield f"transition {transition.name!r} leaves {name_of(atom)}, which is final"
