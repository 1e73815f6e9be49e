"""Values to bytes and back, between the processes of one program.

cloudpickle sends what another process cannot import by value: lambdas, closures, and whatever
`__main__` defines. Two things are done on top of it:

- An exception comes back field for field. Pickle would call its class with `args`, which fails, or
  gives another message, for every class whose `__init__` takes other arguments than it hands on.
- A class that went out by value, and comes back, is the one that is here, as it is. cloudpickle
  finds it again, but sets its methods anew, to copies that see other globals.

Bytes from anywhere else must never come here: whoever writes them can run anything.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from io import BytesIO
from typing import Any, TypeAlias, TypeVar, cast
from weakref import WeakSet

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]  # it has none

__all__ = ["dumps", "loads"]

X = TypeVar("X", bound=BaseException)

_Setter: TypeAlias = Callable[[type, Any], object]

_complete_classes: WeakSet[type] = WeakSet()
"""Classes that travel by value, and that this process has in full."""


def dumps(value: object) -> bytes:
    """The value as bytes. Raises whatever its classes raise when they cannot be pickled."""
    file = BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def loads(data: bytes) -> Any:
    """The value that `dumps` was given, in this process or another of the same program."""
    return pickle.loads(data)


_CloudPickler: Any = cloudpickle.Pickler  # its types are in part unknown to the checkers


class _Pickler(_CloudPickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, BaseException):
            return _reduced_exception(obj)
        reduced: Any = _CloudPickler.reducer_override(self, obj)
        if not isinstance(obj, type) or reduced is NotImplemented or len(reduced) < 6:
            return reduced
        _complete_classes.add(obj)
        make, arguments, state, _, _, set_state = reduced
        return make, arguments, (set_state, state), None, None, _complete


def _complete(kind: type, setting: tuple[_Setter, Any]) -> None:
    """Give a class that has come by value what it consists of, unless it has that already."""
    set_state, state = setting
    if kind not in _complete_classes:
        set_state(kind, state)
        _complete_classes.add(kind)


def _reduced_exception(error: BaseException) -> Any:
    """What the exception is to be rebuilt from; a class that says how itself is left alone."""
    kind = type(error)
    if _says(kind, "__reduce__") or _says(kind, "__reduce_ex__"):
        return _reduced_by_itself(error)
    _, arguments, *rest = cast("tuple[Any, ...]", error.__reduce__())
    try:
        _bare_exception(kind, arguments)
    except TypeError:
        # Only such a class can make its own instances.
        return _reduced_by_itself(error)
    fields = cast("dict[str, Any]", (rest[0] if rest else None) or {})
    state: Any = object.__getstate__(error)
    if isinstance(state, tuple):
        # The class has slots, which exceptions forget to take along.
        fields = {**fields, **cast("tuple[Any, dict[str, Any]]", state)[1]}
    return _bare_exception, (kind, arguments), fields, None, None, _set_fields


def _reduced_by_itself(error: BaseException) -> Any:
    """What its class says, and not what tblib puts in its place as soon as Dask is imported."""
    reduced = error.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    notes: list[str] | None = getattr(error, "__notes__", None)
    if not notes or isinstance(reduced, str) or len(reduced) > 2:
        return reduced
    # Whoever wrote the class did not think of notes, which are not its own.
    return *reduced, {"__notes__": notes}, None, None, _set_fields


def _says(kind: type, method: str) -> bool:
    """Whether a method, maybe one in C or Rust, is not that of the built-in exceptions."""
    definer = next(base for base in kind.__mro__ if method in vars(base))
    return definer.__module__ != "builtins"


def _bare_exception(kind: type[X], arguments: tuple[Any, ...]) -> X:
    """An exception of this class, without a call of the class's own `__init__`."""
    native: Any = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    error = native.__new__(kind, *arguments)
    native.__init__(error, *arguments)
    return error


def _set_fields(error: BaseException, fields: dict[str, Any]) -> None:
    for name, part in fields.items():
        # A frozen dataclass would refuse `setattr`.
        object.__setattr__(error, name, part)
