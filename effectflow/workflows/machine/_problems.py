"""Find everything that is certainly wrong with the definition of a state machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from effectflow.effects import RetryPolicy
from effectflow.workflows.checks import function_problems, step_name_problems
from effectflow.workflows.machine._reachability import Chart
from effectflow.workflows.machine._states import Atom, State, StateSet, covers, name_of
from effectflow.workflows.machine._transition import Transition
from effectflow.workflows.machine._transition_table import saved_types

AnyTransition: TypeAlias = Transition[Any, Any, Any]


class InvalidMachine(ValueError):
    """The definition of a state machine has problems. `problems` lists all of them."""

    def __init__(self, machine: str, problems: Sequence[str]) -> None:
        self.machine = machine
        self.problems = tuple(problems)
        listed = "".join(f"\n  - {problem}" for problem in self.problems)
        super().__init__(f"state machine {machine!r} cannot be built:{listed}")


def problems_of(chart: Chart, retry: RetryPolicy, *, is_endless: bool) -> list[str]:
    """Return the problems of a definition, each as a sentence.

    The states of a class are not known singly, so a problem must affect all of them to count.

    Parameters:
        chart: the definition.
        retry: the machine's retry policy.
        is_endless: whether the author declared that there are no final states.
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
        problems.append("it has no initial state: `initial` must be the state in which it begins")
    if not chart.final and not is_endless:
        problems.append(
            "it has no final state: set `final` to the states that end it, or to None if it never ends"
        )
    try:
        saved_types(chart)
    except ValueError as same_name:
        problems.append(str(same_name))
    return problems


def _has_initial(chart: Chart) -> bool:
    """Return whether there is an initial state. `None` is one only if a transition or `final` uses it."""
    initial = chart.initial.value
    sets = [chart.final, *(states for part in chart.transitions for states in part.states)]
    if initial is None:
        return any(None in states for states in sets)
    return not isinstance(initial, type)


def _unbounded(policy: object, owner: str) -> Iterator[str]:
    if not isinstance(policy, RetryPolicy):
        yield f"the retry policy of {owner} must be a RetryPolicy, not {policy!r}"
    elif not policy.is_bounded:
        yield (
            f"the retry policy of {owner} is unbounded: add with_max_retries(n), "
            "with_max_elapsed(seconds), or without_bound()"
        )


def _repeated(transitions: Sequence[AnyTransition]) -> Iterator[str]:
    names = [transition.name for transition in transitions]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield f"{names.count(name)} transitions have the name {name!r}"


def _faults(transition: AnyTransition) -> Iterator[str]:
    """Yield the problems of one transition by itself."""
    name = f"transition {transition.name!r}"
    yield from step_name_problems(transition.name)
    if transition.action is not None:
        expected = "a function from a state to an effect as its action"
        yield from function_problems(transition.action, name, expected)
    if transition.guard is not None:
        expected = "a function from a state to a bool as its guard"
        yield from function_problems(transition.guard, name, expected)
    if transition.retry is not None:
        yield from _unbounded(transition.retry, name)
    if not transition.source:
        yield f"{name} leaves no state"
    if not transition.target:
        yield f"{name} leads to no state"
    elif transition.action is None and not _is_single(transition.target):
        yield f"{name} has no action, so it must lead to a single state, not to {transition.target}"


def _is_single(states: StateSet) -> bool:
    return len(states.atoms) == 1 and isinstance(states.atoms[0], State)


def _shadowed(transitions: Sequence[AnyTransition]) -> Iterator[str]:
    """Yield the transitions that are never attempted, as an earlier one always is."""
    for number, transition in enumerate(transitions):
        for earlier in transitions[:number]:
            if earlier.guard is None and transition.source and _within(transition, earlier):
                yield (
                    f"transition {transition.name!r} is never attempted: {earlier.name!r} comes "
                    "before it and has no guard"
                )
                break


def _within(transition: AnyTransition, earlier: AnyTransition) -> bool:
    """Return whether the earlier transition leaves every state that the other leaves."""
    return all(
        any(covers(outer, inner) for outer in earlier.source.atoms)
        for inner in transition.source.atoms
    )


def _misplaced(chart: Chart) -> Iterator[str]:
    """Yield the states that cannot be reached, or from which no final state can be reached."""
    for transition in chart.transitions:
        for atom in transition.source.atoms:
            if any(covers(final, atom) for final in chart.final.atoms):
                yield f"transition {transition.name!r} leaves {name_of(atom)}, which is final"
    for transition in chart.transitions:
        for atom in transition.source.atoms:
            if not chart.places_of(StateSet([atom])):
                yield f"transition {transition.name!r} leaves {name_of(atom)}, to which nothing leads"
    for place in chart.places:
        if place not in chart.reached:
            yield f"state {_shown(place)} is unreachable: nothing leads to it from the initial state"
        elif place in chart.final_places:
            continue
        elif not any(arc.source == place for arc in chart.arcs):
            if place not in chart.places_of(chart.final):
                yield f"state {_shown(place)} is dead: it is not final, and no transition leaves it"
        elif chart.final and place not in chart.ending:
            yield f"state {name_of(place)} is dead: no final state can be reached from it"


def _shown(place: Atom) -> str:
    """Return the name of a place, with a hint for a frozenset, which may be meant as several states."""
    if isinstance(place, State) and isinstance(place.value, frozenset):
        return f"{name_of(place)} (a frozenset is one state; use a set for several)"
    return name_of(place)
