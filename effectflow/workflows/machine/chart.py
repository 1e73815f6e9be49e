"""A definition as a chart: the states that can be told apart, and the arrows between them.

What is certain of a definition (a state that nothing leads to, one that leads nowhere) is seen here, and
it is what is drawn. A class may stand for many states, so the places of a chart are:

- each single state that the definition names, and each member of an Enum that it moves to as a class;
- each class that it moves to or ends in, with all of its instances as one place. A class whose subclasses
  are places too stands for those.

A class that is only left from, such as `source=Order`, is no place: it stands for the places within it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, TypeAlias, cast

from effectflow.workflows.machine.states import Atom, State, StateSet, covers
from effectflow.workflows.machine.transition import Transition

__all__ = ["Arrow", "Chart", "chart_of"]

AnyTransition: TypeAlias = Transition[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Arrow:
    """One way from a place to another. `is_abort` says that it is taken by `Abort`."""

    transition: AnyTransition
    source: Atom
    target: Atom
    is_abort: bool = False


@dataclass(frozen=True)
class Chart:
    """The chart of a definition. Pure, and made only when it is asked for."""

    initial: State
    transitions: Sequence[AnyTransition]
    final: StateSet

    @property
    def structure(self) -> tuple[str, ...]:
        """The definition as lines of text, to tell whether it has changed."""
        return (*map(str, self.transitions), f"final: {self.final}")

    @cached_property
    def declared(self) -> StateSet:
        """Every state that the definition names."""
        sets = [self.final, *(part for each in self.transitions for part in each.states)]
        return StateSet([self.initial, *(atom for states in sets for atom in states.atoms)])

    @cached_property
    def places(self) -> tuple[Atom, ...]:
        """The states that can be told apart, in the order in which they are first named."""
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
        """The places that have states of this set."""
        found: set[Atom] = set()
        for atom in states.atoms:
            # A single state is found by itself, so that hundreds of them are not each compared with each.
            near = self.places if isinstance(atom, type) else self._classes
            found.update(place for place in near if covers(atom, place) or covers(place, atom))
            if atom in self._numbers:
                found.add(atom)
        return sorted(found, key=lambda place: self._numbers[place])

    def places_with(self, state: object) -> list[Atom]:
        """The place that has this state; none if the definition does not name it."""
        atom = State(type(state), state)
        return [place for place in self.places if covers(place, atom)]

    @cached_property
    def final_places(self) -> tuple[Atom, ...]:
        """The places all of whose states are final."""
        return tuple(
            place for place in self.places if any(covers(atom, place) for atom in self.final.atoms)
        )

    @cached_property
    def arrows(self) -> tuple[Arrow, ...]:
        """What the transitions declare. Nothing leaves a final state."""
        return tuple(
            Arrow(transition, source, target, is_abort)
            for transition in self.transitions
            for source in self.places_of(transition.source)
            if source not in self.final_places
            for targets, is_abort in ((transition.target, False), (transition.abort_to, True))
            for target in self.places_of(targets or StateSet([]))
        )

    @cached_property
    def implied(self) -> tuple[Arrow, ...]:
        """The ways to any final state that an action has, if it may abort to whichever it likes."""
        return tuple(
            Arrow(transition, source, target, is_abort=True)
            for transition in self.transitions
            if transition.action is not None and transition.abort_to is None
            for source in self.places_of(transition.source)
            if source not in self.final_places
            for target in self.places_of(self.final)
        )

    @cached_property
    def drawn(self) -> tuple[Arrow, ...]:
        """The arrows of a drawing: those that are implied only where nothing else leads."""
        declared = {arrow.target for arrow in self.arrows}
        return (*self.arrows, *(arrow for arrow in self.implied if arrow.target not in declared))

    @cached_property
    def reachable(self) -> frozenset[Atom]:
        """The places that the machine can come to."""
        ways = [(arrow.source, arrow.target) for arrow in (*self.arrows, *self.implied)]
        return _closure(self.places_with(self.initial.value), ways)

    @cached_property
    def ending(self) -> frozenset[Atom]:
        """The places from which a final state can be reached."""
        ways = [(arrow.target, arrow.source) for arrow in (*self.arrows, *self.implied)]
        return _closure(self.places_of(self.final), ways)


def chart_of(initial: object, transitions: object, final: object) -> tuple[Chart, list[str]]:
    """The chart of a definition, and why what it gives as states and transitions are none."""
    begins, ends = State.of(None), StateSet([])
    problems: list[str] = []
    try:
        begins = State.of(initial)
    except TypeError as problem:
        problems.append(f"`initial` is no state: {problem}")
    try:
        ends = StateSet([]) if final is None else StateSet.listed(final)
    except TypeError as problem:
        problems.append(f"`final` has no states: {problem}")
    ways: list[AnyTransition] = []
    for number, given in enumerate(_parts(transitions)):
        if isinstance(given, Transition):
            ways.append(cast(AnyTransition, given))
        else:
            problems.append(
                f"`transitions` has {given!r} at index {number}, which is no Transition"
            )
    if not isinstance(transitions, Iterable):
        problems.append(f"`transitions` is given {transitions!r}: it takes a list of transitions")
    return Chart(begins, tuple(ways), ends), problems


def _parts(given: object) -> Iterable[object]:
    return cast("Iterable[object]", given) if isinstance(given, Iterable) else ()


def _members(states: StateSet) -> Iterable[Atom]:
    """The atoms of a set, with an Enum as each of its members."""
    for atom in states.atoms:
        if isinstance(atom, type) and issubclass(atom, Enum):
            yield from (State.of(member) for member in atom)
        else:
            yield atom


def _closure(start: Iterable[Atom], ways: Sequence[tuple[Atom, Atom]]) -> frozenset[Atom]:
    """All that can be come to from some places, themselves included."""
    onward: dict[Atom, list[Atom]] = {}
    for source, target in ways:
        onward.setdefault(source, []).append(target)
    found, todo = set(start), list(start)
    while todo:
        for place in onward.get(todo.pop(), ()):
            if place not in found:
                found.add(place)
                todo.append(place)
    return frozenset(found)
