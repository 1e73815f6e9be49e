"""Pickle values between the processes of one program.

cloudpickle sends by value what another process cannot import: lambdas, closures, and what `__main__`
defines. This module adds three things:

- An exception comes back field for field. Plain pickle calls its class with `args`, which fails or
  changes the message if `__init__` takes other arguments than it passes on.
- Code keeps the name of its file.
- A class that was sent by value and comes back is the original class, unchanged. cloudpickle finds the
  class again, but replaces its methods by copies that see other globals.

Never unpickle bytes from anywhere else: they can run any code.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from io import BytesIO
from types import CodeType
from typing import Any, TypeAlias, TypeVar, cast
from weakref import WeakSet

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]  # it has none

X = TypeVar("X", bound=BaseException)

_Setter: TypeAlias = Callable[[type, Any], object]

_complete_classes: WeakSet[type] = WeakSet()
"""Classes that are sent by value, and whose complete definition this process has."""


def dumps(value: object) -> bytes:
    """Return the value as bytes. Raise what its classes raise if they cannot be pickled."""
    file = BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def loads(data: bytes) -> Any:
    """Return the value that `dumps` was given, in this process or another of the same program."""
    return pickle.loads(data)


_CloudPickler: Any = cloudpickle.Pickler  # the checkers know only some of its types


class _Pickler(_CloudPickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, BaseException):
            return _reduced_exception(obj)
        if isinstance(obj, CodeType):
            # cloudpickle leaves out the file, which tracebacks show.
            make, arguments = self.dispatch_table[CodeType](obj)
            named = (obj.co_filename if each == "<dynamic-code>" else each for each in arguments)
            return make, tuple(named)
        reduced: Any = _CloudPickler.reducer_override(self, obj)
        if not isinstance(obj, type) or reduced is NotImplemented or len(reduced) < 6:
            return reduced
        _complete_classes.add(obj)
        make, arguments, state, _, _, set_state = reduced
        return make, arguments, (set_state, state), None, None, _complete


def _complete(kind: type, setting: tuple[_Setter, Any]) -> None:
    """Add the members to a class that came by value, unless this process has the complete class."""
    set_state, state = setting
    if kind not in _complete_classes:
        set_state(kind, state)
        _complete_classes.add(kind)


def _reduced_exception(error: BaseException) -> Any:
    """Return how to rebuild the exception. A class that defines this itself takes precedence."""
    kind = type(error)
    if _defines(kind, "__reduce__") or _defines(kind, "__reduce_ex__"):
        return _reduced_by_itself(error)
    _, arguments, *rest = cast("tuple[Any, ...]", error.__reduce__())
    try:
        _bare_exception(kind, arguments)
    except TypeError:
        # Only the class itself can make its instances.
        return _reduced_by_itself(error)
    fields = cast("dict[str, Any]", (rest[0] if rest else None) or {})
    state: Any = object.__getstate__(error)
    if isinstance(state, tuple):
        # The class has slots, which `__reduce__` of exceptions leaves out.
        fields = {**fields, **cast("tuple[Any, dict[str, Any]]", state)[1]}
    return _bare_exception, (kind, arguments), fields, None, None, _set_fields


def _reduced_by_itself(error: BaseException) -> Any:
    """Return what the class defines, not what tblib registers for it once Dask is imported."""
    reduced = error.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    notes: list[str] | None = getattr(error, "__notes__", None)
    if not notes or isinstance(reduced, str) or len(reduced) > 2:
        return reduced
    # The class rebuilds its own fields only; the notes are added to them.
    return *reduced, {"__notes__": notes}, None, None, _set_fields


def _defines(kind: type, method: str) -> bool:
    """Return whether a method, even one in C or Rust, overrides that of the built-in exceptions."""
    definer = next(base for base in kind.__mro__ if method in vars(base))
    return definer.__module__ != "builtins"


def _bare_exception(kind: type[X], arguments: tuple[Any, ...]) -> X:
    """Return an exception of this class, without calling the class's own `__init__`."""
    native: Any = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    error = native.__new__(kind, *arguments)
    native.__init__(error, *arguments)
    return error


def _set_fields(error: BaseException, fields: dict[str, Any]) -> None:
    for name, part in fields.items():
        # A frozen dataclass rejects `setattr`.
        object.__setattr__(error, name, part)
