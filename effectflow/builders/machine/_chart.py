"""The states and transitions of a definition: what is wrong with them, and the diagram that shows them.

A class may mean many states, so a chart connects *places*:

- each single state that the definition names, and each member of an Enum that is a target as a class;
- each class that is a target or final, with all of its instances as one place. A class whose subclasses
  are places as well means those.

A class that is only a source, such as `source=Order`, is not a place: it means the places within it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, TypeAlias, cast, get_args, get_origin

from effectflow.builders.checks import (
    InvalidDefinition,
    effect_problems,
    function_problems,
    problems_raised,
    reachable,
    retry_problems,
    step_name_problems,
)
from effectflow.builders.diagrams import Arrow, Box, Diagram, Mark
from effectflow.builders.machine._machine import Machine
from effectflow.builders.machine._states import Atom, State, StateSet, covers, name_of
from effectflow.builders.machine._transition import (
    Abort,
    Moved,
    NoTransition,
    Transition,
    TransitionExhausted,
)
from effectflow.builders.steps import name_of_function
from effectflow.checkpoint.values import KnownTypes
from effectflow.effects import RetryPolicy
from effectflow.effects.signatures import effect_types, environment_type

AnyTransition: TypeAlias = Transition[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Arc:
    """A connection of two places by a transition, or by its `Abort`.

    It is implied if the transition may abort to any final state.
    """

    transition: AnyTransition
    source: Atom
    target: Atom
    is_abort: bool
    is_implied: bool


@dataclass(frozen=True)
class Chart:
    """The places of a definition and the arcs between them, computed on demand. Pure."""

    initial: State
    transitions: Sequence[AnyTransition]
    final: StateSet

    @property
    def structure(self) -> tuple[str, ...]:
        """The definition as lines of text, which a resume compares."""
        return (*map(str, self.transitions), f"final: {self.final}")

    @cached_property
    def declared(self) -> StateSet:
        """Every state that the definition names."""
        sets = [self.final, *(part for each in self.transitions for part in each.states)]
        return StateSet([self.initial, *(atom for states in sets for atom in states.atoms)])

    @cached_property
    def places(self) -> tuple[Atom, ...]:
        """The places, in the order in which they are first named."""
        named = tuple(dict.fromkeys(self._named()))
        classes = [atom for atom in named if isinstance(atom, type)]
        leaves = [
            kind
            for kind in classes
            if not any(other is not kind and issubclass(other, kind) for other in classes)
        ]
        return tuple(
            atom
            for atom in named
            if atom in leaves
            or (isinstance(atom, State) and not any(covers(leaf, atom) for leaf in leaves))
        )

    @cached_property
    def _numbers(self) -> dict[Atom, int]:
        return {place: number for number, place in enumerate(self.places)}

    @cached_property
    def _classes(self) -> tuple[Atom, ...]:
        """The places that are classes."""
        return tuple(place for place in self.places if isinstance(place, type))

    def _named(self) -> Iterable[Atom]:
        yield self.initial
        for transition in self.transitions:
            yield from (atom for atom in transition.source.atoms if isinstance(atom, State))
            yield from _members(transition.target)
            yield from _members(transition.abort_to or StateSet([]))
        yield from _members(self.final)

    def places_of(self, states: StateSet) -> list[Atom]:
        """Return the places that have states of this set."""
        found: set[Atom] = set()
        for atom in states.atoms:
            # Single states are looked up, as comparing hundreds of them with each other takes long.
            near = self.places if isinstance(atom, type) else self._classes
            found.update(place for place in near if covers(atom, place) or covers(place, atom))
            if atom in self._numbers:
                found.add(atom)
        return sorted(found, key=lambda place: self._numbers[place])

    def places_with(self, state: object) -> list[Atom]:
        """Return the place with this state; empty if the definition does not name it."""
        atom = State(type(state), state)
        return [place for place in self.places if covers(place, atom)]

    @cached_property
    def final_places(self) -> tuple[Atom, ...]:
        """The places all of whose states are final."""
        return tuple(
            place for place in self.places if any(covers(atom, place) for atom in self.final.atoms)
        )

    @cached_property
    def arcs(self) -> tuple[Arc, ...]:
        """The arcs that the transitions declare or imply. None leaves a final state."""
        return tuple(
            Arc(transition, source, target, is_abort, is_implied)
            for transition in self.transitions
            for source in self.places_of(transition.source)
            if source not in self.final_places
            for targets, is_abort, is_implied in self._targets(transition)
            for target in self.places_of(targets)
        )

    def _targets(self, transition: AnyTransition) -> Iterator[tuple[StateSet, bool, bool]]:
        """Yield where a transition leads, whether by `Abort`, and whether that is implied."""
        yield transition.target, False, False
        if transition.abort_to is not None:
            yield transition.abort_to, True, False
        elif transition.action is not None:
            yield self.final, True, True

    @cached_property
    def drawn(self) -> tuple[Arc, ...]:
        """The arcs of a diagram: those that are implied only where no declared arc leads."""
        declared = [arc for arc in self.arcs if not arc.is_implied]
        reached = {arc.target for arc in declared}
        implied = (arc for arc in self.arcs if arc.is_implied and arc.target not in reached)
        return (*declared, *implied)

    @cached_property
    def reached(self) -> set[Atom]:
        """The places that the machine can reach."""
        pairs = [(arc.source, arc.target) for arc in self.arcs]
        return reachable(self.places_with(self.initial.value), pairs)

    @cached_property
    def ending(self) -> set[Atom]:
        """The places from which a final state can be reached."""
        pairs = [(arc.target, arc.source) for arc in self.arcs]
        return reachable(self.places_of(self.final), pairs)

    @cached_property
    def _annotated(self) -> list[tuple[object, object]]:
        """The output and the error that the annotations of each action declare."""
        actions = (transition.action for transition in self.transitions)
        return [(None, None) if action is None else effect_types(action) for action in actions]

    @property
    def environment_types(self) -> list[object]:
        """The environments that the annotations of actions declare."""
        actions = (transition.action for transition in self.transitions)
        return [environment_type(action) for action in actions if action is not None]

    @cached_property
    def state_types(self) -> KnownTypes:
        """The classes of states. Raises ValueError if two of them have the same name."""
        atoms = (atom.kind if isinstance(atom, State) else atom for atom in self.declared.atoms)
        outputs = (part for output, _ in self._annotated for part in _states_in(output))
        return KnownTypes.of(*atoms, *outputs)

    @cached_property
    def step_types(self) -> list[KnownTypes]:
        """For each transition, the classes of states, and of the errors of an attempt."""
        # Expanded once, not for each transition: a machine may have hundreds of both.
        classes = [*self.state_types.classes.values(), *self.state_types.errors.values()]
        return [KnownTypes.of(*classes, error, TransitionExhausted) for _, error in self._annotated]

    @cached_property
    def output_types(self) -> KnownTypes:
        """The classes of states, and of the errors of a run."""
        known = KnownTypes.of(NoTransition)
        # Errors are keyed by their full names, so that two of the same name remain different.
        errors = {name: kind for types in self.step_types for name, kind in types.errors.items()}
        states = self.state_types
        return KnownTypes(states.classes, {**states.errors, **known.errors, **errors})


def chart_of(initial: object, transitions: object, final: object) -> tuple[Chart, list[str]]:
    """Return the chart of a definition, and the problems of its states and transitions."""
    begins, ends = State.of(None), StateSet([])
    problems: list[str] = []
    try:
        begins = State.of(initial)
    except TypeError as problem:
        problems.append(f"`initial` must be a state: {problem}")
    try:
        ends = StateSet([]) if final is None else StateSet.listed(final)
    except TypeError as problem:
        problems.append(f"`final` must be states: {problem}")
    if not isinstance(transitions, Iterable):
        problems.append(f"`transitions` must be a list of transitions, not {transitions!r}")
        transitions = ()
    given = list(cast("Iterable[object]", transitions))
    problems += [
        f"`transitions` must have transitions only, but has {part!r} at index {number}"
        for number, part in enumerate(given)
        if not isinstance(part, Transition)
    ]
    declared = [cast(AnyTransition, part) for part in given if isinstance(part, Transition)]
    return Chart(begins, tuple(declared), ends), problems


def _members(states: StateSet) -> Iterable[Atom]:
    """Yield the atoms of a set, and each member in place of an Enum."""
    for atom in states.atoms:
        if isinstance(atom, type) and issubclass(atom, Enum):
            yield from (State.of(member) for member in atom)
        else:
            yield atom


def _states_in(outcome: object) -> Iterator[object]:
    """Yield the annotations of states in that of an outcome, such as `Moved[Order] | Retry`."""
    if get_origin(outcome) in (Moved, Abort):
        yield from get_args(outcome)
        return
    for part in get_args(outcome):
        yield from _states_in(part)


class InvalidMachine(InvalidDefinition):
    """The definition of a state machine has problems. `problems` lists all of them."""

    __module__ = "effectflow.machines"

    def __init__(self, machine: str, problems: Iterable[str]) -> None:
        self.machine = machine
        super().__init__(f"state machine {machine!r}", problems)


def problems_of(chart: Chart, retry: RetryPolicy, *, is_endless: bool) -> list[str]:
    """Return the problems of a definition, each as a sentence; it may have no final state if endless.

    The states of a class are not known singly, so a problem must affect all of them to count.
    """
    problems = [*retry_problems(retry, "the machine")]
    if not chart.transitions:
        problems.append("it has no transitions")
    problems += _repeated(chart.transitions)
    for transition in chart.transitions:
        problems += _faults(transition)
    problems += _shadowed(chart.transitions)
    if _has_initial(chart):
        problems += _misplaced(chart)
    else:
        problems.append("it has no initial state: `initial` must be the state to begin in")
    if not chart.final and not is_endless:
        problems.append(
            "it has no final state: set `final` to the states that end it, or to None if it never ends"
        )
    problems += problems_raised(lambda: chart.step_types)
    return problems


def _has_initial(chart: Chart) -> bool:
    """Return whether there is an initial state. `None` is one only if a transition or `final` uses it."""
    initial = chart.initial.value
    sets = [chart.final, *(states for part in chart.transitions for states in part.states)]
    if initial is None:
        return any(None in states for states in sets)
    return not isinstance(initial, type)


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
        yield from effect_problems(transition.action, name, expected)
    if transition.checks is not None:
        if not transition.checks:
            yield f"{name} has a guard without checks"
        for check, function in transition.checks.items():
            expected = "a function from a state to a bool"
            yield from function_problems(function, f"the check {check!r} of {name}", expected)
    if transition.guard is not None:
        expected = "a function from a state to a bool as its guard"
        yield from function_problems(transition.guard, name, expected)
    if transition.retry is not None:
        yield from retry_problems(transition.retry, name)
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
            if not earlier.is_guarded and transition.source and _within(transition, earlier):
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


_START, _END = "start", "end"


def diagram_of(chart: Chart, machine: Machine[Any] | None = None) -> Diagram:
    """Return the diagram of a definition; with a machine, it marks the states of that machine. Pure."""
    keys = {place: f"state {number}" for number, place in enumerate(chart.places)}
    marks = {} if machine is None else _marks(chart, machine)
    return Diagram(
        (
            Box(_START, shape="start"),
            *(Box(keys[place], name_of(place), mark=marks.get(place, "plain")) for place in keys),
            Box(_END, shape="end"),
        ),
        tuple(_arrows(chart, keys)),
    )


def _marks(chart: Chart, machine: Machine[Any]) -> dict[Atom, Mark]:
    been = [machine.initial, *(entry.target for entry in machine.history)]
    visited: dict[Atom, Mark] = {
        place: "visited" for state in been for place in chart.places_with(state)
    }
    return {**visited, **dict.fromkeys(chart.places_with(machine.current), "current")}


def _arrows(chart: Chart, keys: dict[Atom, str]) -> Iterator[Arrow]:
    for place in chart.places_with(chart.initial.value):
        yield Arrow(_START, keys[place])
    for arc in chart.drawn:
        yield Arrow(keys[arc.source], keys[arc.target], _label(arc), is_dashed=arc.is_abort)
    for place in chart.final_places:
        yield Arrow(keys[place], _END)


def _label(arc: Arc) -> str:
    """Return the name of the transition, with its guard and whether the arc is an abort."""
    guard, checks = arc.transition.guard, arc.transition.checks
    condition = ""
    if guard is not None:
        condition = f" if {name_of_function(guard, 'guard')}"
    elif checks is not None:
        condition = f" if {' and '.join(checks)}"
    return f"{arc.transition.name}{condition}{' (abort)' if arc.is_abort else ''}"
