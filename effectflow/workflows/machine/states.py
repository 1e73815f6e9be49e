"""Sets of states, as a definition names them: by themselves, or by classes that stand for instances."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Set
from enum import Enum
from types import UnionType
from typing import (
    Any,
    Final,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

from effectflow.checkpoint.values.classes import is_record, record_of

__all__ = ["Atom", "State", "StateSet", "States", "covers", "name_of"]

T = TypeVar("T")

States: TypeAlias = T | type[T] | set[T] | set[type[T]]
"""How a definition names states: one, the class of some, or a set of either.

A frozenset is hashable, and so is a state, of which it names one: itself.
"""

_SHOWN = 60


class State(NamedTuple):
    """A single state, told apart by its class as well: 1, 1.0 and True are three states."""

    kind: type[Any]
    value: Any

    @staticmethod
    def of(value: object) -> State:
        """The state that a value is.

        Raises TypeError for a value that is not hashable, and for an annotation.
        """
        if _is_annotation(value):
            raise TypeError(
                f"{value} is an annotation, and neither a state nor a class: a state is named by itself, "
                "by its class, by a union of classes or by a Literal"
            )
        try:
            hash(value)
        except TypeError as error:
            raise TypeError(
                f"{value!r} is not hashable, so it is no state: a data class needs frozen=True, and "
                "several states are named by a set"
            ) from error
        return State(type(value), value)


Atom: TypeAlias = State | type[Any]
"""What a set of states is made of: a single state, or a class for all of its instances."""


class StateSet:
    """The states that a definition names in one place.

    Attributes:
        atoms: what it is made of, always in the same order.
    """

    __slots__ = ("_classes", "_kinds", "_single", "atoms")

    def __init__(self, atoms: Iterable[Atom]) -> None:
        self.atoms: Final = tuple(dict.fromkeys(atoms))
        self._classes: Final = tuple(atom for atom in self.atoms if isinstance(atom, type))
        self._single: Final = frozenset(atom for atom in self.atoms if isinstance(atom, State))
        self._kinds: Final = frozenset(atom.kind for atom in self._single)

    @staticmethod
    def named(*named: object) -> StateSet:
        """The set that a definition means by a state, a class, a union, a Literal, or a set of those.

        Raises TypeError for what is not hashable, and for any other annotation.
        """
        return StateSet(atom for part in named for atom in _atoms(part))

    @staticmethod
    def listed(named: object) -> StateSet:
        """The set that a collection of states and classes means, or a single one of them."""
        match named:
            case str() | bytes() | Enum():
                return StateSet.named(named)
            case Set():
                return StateSet.named(set(cast("Set[object]", named)))
            case Collection():
                return StateSet.named(*cast("Collection[object]", named))
            case _:
                return StateSet.named(named)

    def __contains__(self, state: object) -> bool:
        if isinstance(state, self._classes):
            return True
        # A state that is never named by itself need not be hashable.
        kind = type(state)
        return kind in self._kinds and (kind, state) in self._single

    def __bool__(self) -> bool:
        return bool(self.atoms)

    def __str__(self) -> str:
        return " or ".join(name_of(atom) for atom in self.atoms) or "no state"


def covers(outer: Atom, inner: Atom) -> bool:
    """Whether every state of one atom is one of the other."""
    if not isinstance(outer, type):
        return outer == inner
    return issubclass(inner, outer) if isinstance(inner, type) else isinstance(inner.value, outer)


def name_of(state: object) -> str:
    """A state, or a class of states, for people: short, on one line."""
    match state:
        case State(_, value):
            return name_of(value)
        case Enum():
            return state.name or repr(state)
        case type():
            return state.__name__
        case _:
            text = " ".join((state if isinstance(state, str) else _text_of(state)).split())
            return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _atoms(named: object) -> Iterable[Atom]:
    if isinstance(named, type) and not _is_annotation(named):
        return [named]
    if get_origin(named) is Literal:
        return [State.of(value) for value in get_args(named)]
    if isinstance(named, UnionType) or get_origin(named) is Union:
        return [atom for part in get_args(named) for atom in _atoms(part)]
    if isinstance(named, set):
        # A set has another order in each process; messages and drawings are to have one.
        parts = cast("set[object]", named)
        return sorted((atom for part in parts for atom in _atoms(part)), key=_order)
    return [State.of(named)]


def _is_annotation(named: object) -> bool:
    """Whether it is of the typing module: something that no state can be, nor be an instance of."""
    is_generic = get_origin(named) is not None
    return is_generic or named is Any or type(named).__module__ in ("typing", "typing_extensions")


def _order(atom: Atom) -> tuple[str, int, str]:
    """Sorts classes and states by name, and the members of an Enum as they are defined."""
    if isinstance(atom, type):
        return "", 0, atom.__qualname__
    if isinstance(atom.value, Enum):
        members = list(type(atom.value))
        if atom.value not in members:
            # Members of a Flag that are combined, or none of them: after the single ones.
            return atom.kind.__qualname__, len(members) + int(atom.value.value), ""
        return atom.kind.__qualname__, members.index(atom.value), ""
    return atom.kind.__qualname__, 0, _text_of(atom.value)


def _text_of(state: object) -> str:
    """The `repr` of a state, but the same in each process, as definitions are compared by it."""
    text = repr(state)
    for part in _frozensets_in(state):
        elements = ", ".join(sorted(map(_text_of, part)))
        text = text.replace(repr(part), f"frozenset({{{elements}}})")
    return text


def _frozensets_in(state: object) -> Iterator[frozenset[object]]:
    """A state itself, or those in its fields or places, if they have anything to put in order."""
    parts: Iterable[object] = ()
    if type(state) is frozenset:
        if state:
            yield cast("frozenset[object]", state)
    elif type(state) is tuple:
        parts = cast("tuple[object, ...]", state)
    elif is_record(type(state)):
        parts = record_of(type(state)).take(state).values()
    for part in parts:
        yield from _frozensets_in(part)
