"""Sets of states, as a definition names them: single states, and classes that mean all instances."""

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

from effectflow.checkpoint.values import union_of
from effectflow.checkpoint.values.classes import is_record, record_of

T = TypeVar("T")

States: TypeAlias = T | type[T] | set[T] | set[type[T]]
"""How a definition names states: a state, a class, or a set of either.

A frozenset is hashable, so it is a state itself.
"""

_SHOWN = 60


class State(NamedTuple):
    """A single state. Its class matters: 1, 1.0 and True are three states."""

    kind: type[Any]
    value: Any

    @staticmethod
    def of(value: object) -> State:
        """Return the state with this value.

        Raises TypeError for a value that is not hashable, and for an annotation.
        """
        if _is_annotation(value):
            raise TypeError(
                f"{value} is an annotation, not a state: name states by themselves, by a class, by a "
                "union of classes or by a Literal"
            )
        try:
            hash(value)
        except TypeError as error:
            raise TypeError(
                f"{value!r} is not hashable, so it cannot be a state: make a dataclass frozen=True, and "
                "use a set for several states"
            ) from error
        return State(type(value), value)


Atom: TypeAlias = State | type[Any]
"""An element of a set of states: a single state, or a class, which means all of its instances."""


class StateSet:
    """The states that one part of a definition names.

    Attributes:
        atoms: its elements, in the same order in every process.
    """

    __slots__ = ("_classes", "_kinds", "_single", "atoms")

    def __init__(self, atoms: Iterable[Atom]) -> None:
        self.atoms: Final = tuple(dict.fromkeys(atoms))
        self._classes: Final = tuple(atom for atom in self.atoms if isinstance(atom, type))
        self._single: Final = frozenset(atom for atom in self.atoms if isinstance(atom, State))
        self._kinds: Final = frozenset(atom.kind for atom in self._single)

    @staticmethod
    def named(*named: object) -> StateSet:
        """Return the set that a state, a class, a union, a Literal, or a set of those means.

        Raises TypeError for a value that is not hashable, and for any other annotation.
        """
        return StateSet(atom for part in named for atom in _atoms(part))

    @staticmethod
    def listed(named: object) -> StateSet:
        """Return the set that a collection of states and classes means, or a single one of them."""
        match named:
            case str() | bytes() | Enum():
                return StateSet.named(named)
            case Set():
                return StateSet.named(set(cast("Set[object]", named)))
            case Collection():
                return StateSet.named(*cast("Collection[object]", named))
            case _:
                return StateSet.named(named)

    @property
    def annotation(self) -> Any:
        """The annotation of a value that is one of these states."""
        choices = tuple(atom.value for atom in self.atoms if isinstance(atom, State))
        parts = (*([Literal[choices]] if choices else []), *self._classes)
        return union_of(parts)

    @property
    def classes(self) -> Any:
        """The annotation of a value that has the class of one of these states."""
        return union_of(self._kinds | set(self._classes))

    def __contains__(self, state: object) -> bool:
        if isinstance(state, self._classes):
            return True
        # Only single states that are named need to be hashable.
        kind = type(state)
        return kind in self._kinds and (kind, state) in self._single

    def __bool__(self) -> bool:
        return bool(self.atoms)

    def __str__(self) -> str:
        return " or ".join(name_of(atom) for atom in self.atoms) or "no state"


def covers(outer: Atom, inner: Atom) -> bool:
    """Return whether `outer` includes every state of `inner`."""
    if not isinstance(outer, type):
        return outer == inner
    return issubclass(inner, outer) if isinstance(inner, type) else isinstance(inner.value, outer)


def name_of(state: object) -> str:
    """Return the name of a state or a class for messages: short, on one line."""
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
        # The order of a set differs between processes; that of messages and diagrams must not.
        parts = cast("set[object]", named)
        return sorted((atom for part in parts for atom in _atoms(part)), key=_order)
    return [State.of(named)]


def _is_annotation(named: object) -> bool:
    """Return whether it is a construct of `typing`, which is neither a state nor a class of states."""
    is_generic = get_origin(named) is not None
    return is_generic or named is Any or type(named).__module__ in ("typing", "typing_extensions")


def _order(atom: Atom) -> tuple[str, int, str]:
    """Return the key that sorts classes and states by name, and members of an Enum by definition."""
    if isinstance(atom, type):
        return "", 0, atom.__qualname__
    if isinstance(atom.value, Enum):
        members = list(type(atom.value))
        if atom.value not in members:
            # Combined members of a Flag, or the empty one, follow the single ones.
            return atom.kind.__qualname__, len(members) + int(atom.value.value), ""
        return atom.kind.__qualname__, members.index(atom.value), ""
    return atom.kind.__qualname__, 0, _text_of(atom.value)


def _text_of(state: object) -> str:
    """Return the `repr` of a state, made the same in every process, as definitions are compared by it."""
    text = repr(state)
    for part in _frozensets_in(state):
        elements = ", ".join(sorted(map(_text_of, part)))
        text = text.replace(repr(part), f"frozenset({{{elements}}})")
    return text


def _frozensets_in(state: object) -> Iterator[frozenset[object]]:
    """Yield the frozensets in a state, at any depth of fields and items."""
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
