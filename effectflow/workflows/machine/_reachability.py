"""Which states of a machine can be reached, and the diagram that shows it.

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
from typing import Any, TypeAlias, cast

from effectflow.workflows.checks import reachable
from effectflow.workflows.diagrams import Arrow, Box, Diagram, Mark
from effectflow.workflows.machine._machine import Machine
from effectflow.workflows.machine._states import Atom, State, StateSet, covers, name_of
from effectflow.workflows.machine._transition import Transition

AnyTransition: TypeAlias = Transition[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Arc:
    """A connection of two places by a transition, or by its `Abort`."""

    transition: AnyTransition
    source: Atom
    target: Atom
    is_abort: bool = False


@dataclass(frozen=True)
class Chart:
    """The places of a definition and the arcs between them, computed on demand. Pure."""

    initial: State
    transitions: Sequence[AnyTransition]
    final: StateSet

    @property
    def structure(self) -> tuple[str, ...]:
        """The definition as lines of text, by which a resume compares it."""
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
        """The arcs that the transitions declare. None leaves a final state."""
        return tuple(
            Arc(transition, source, target, is_abort)
            for transition in self.transitions
            for source in self.places_of(transition.source)
            if source not in self.final_places
            for targets, is_abort in ((transition.target, False), (transition.abort_to, True))
            for target in self.places_of(targets or StateSet([]))
        )

    @cached_property
    def implied(self) -> tuple[Arc, ...]:
        """The arcs to each final state of actions that may abort to any."""
        return tuple(
            Arc(transition, source, target, is_abort=True)
            for transition in self.transitions
            if transition.action is not None and transition.abort_to is None
            for source in self.places_of(transition.source)
            if source not in self.final_places
            for target in self.places_of(self.final)
        )

    @cached_property
    def drawn(self) -> tuple[Arc, ...]:
        """The arcs of a diagram: those that are implied only where no declared arc leads."""
        declared = {arc.target for arc in self.arcs}
        return (*self.arcs, *(arc for arc in self.implied if arc.target not in declared))

    @cached_property
    def reached(self) -> set[Atom]:
        """The places that the machine can reach."""
        pairs = [(arc.source, arc.target) for arc in (*self.arcs, *self.implied)]
        return reachable(self.places_with(self.initial.value), pairs)

    @cached_property
    def ending(self) -> set[Atom]:
        """The places from which a final state can be reached."""
        pairs = [(arc.target, arc.source) for arc in (*self.arcs, *self.implied)]
        return reachable(self.places_of(self.final), pairs)


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


_START, _END = "start", "end"


def diagram_of(name: str, chart: Chart, machine: Machine[Any] | None = None) -> Diagram:
    """Return the diagram of a definition; with a machine, it marks the states of that machine. Pure."""
    keys = {place: f"state {number}" for number, place in enumerate(chart.places)}
    marks = {} if machine is None else _marks(chart, machine)
    return Diagram(
        name,
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
    guard = arc.transition.guard
    name = getattr(guard, "__name__", "<lambda>")
    condition = f" if {'guard' if name == '<lambda>' else name}" if guard is not None else ""
    return f"{arc.transition.name}{condition}{' (abort)' if arc.is_abort else ''}"
