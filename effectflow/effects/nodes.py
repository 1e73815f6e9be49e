"""The kinds of effects, and how `repr` shows them. Only `interpreter.py` gives them a meaning.

Slots are set once, in `__init__`. Frozen dataclasses would do the same and take four times as long to
create; every bind creates an effect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

from effectflow.effects.bodies import Failing
from effectflow.effects.debug import IS_DEBUG, warn_if_never_run
from effectflow.effects.effect import Effect
from effectflow.effects.errors import Exit
from effectflow.effects.scope import Scope
from effectflow.effects.trails import TypedFailure

AnyEffect = Effect[Any, Any, Any]


def itself(effect: AnyEffect) -> AnyEffect:
    """Return the effect: the function for operators whose items are effects already."""
    return effect


def written(function: Any, name: str, *arguments: Any) -> Any:
    """Return the function of a node, marked to show the operator that made it."""
    function._effectflow_call = (name, *arguments)
    return function


class Pure(Effect[Any, Any, Any]):
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value: Final = value


class Fail(Effect[Any, Any, Any], Failing):
    __slots__ = ("error", "trail")

    def __init__(self, error: Any, trail: tuple[str, ...] = ()) -> None:
        self.error: Final = error
        self.trail: Final = trail

    def with_trail(self, trail_of: Callable[[object], tuple[str, ...]]) -> Fail:
        trail = self.trail or trail_of(self.error)
        return Fail(self.error, trail) if trail else self


class Die(Effect[Any, Any, Any], Failing):
    """Raises an exception with these notes."""

    __slots__ = ("exception", "notes")

    def __init__(self, exception: Exception, notes: tuple[str, ...] = ()) -> None:
        self.exception: Final = exception
        self.notes: Final = notes

    def with_trail(self, trail_of: Callable[[object], tuple[str, ...]]) -> Die:
        notes = trail_of(self.exception)
        return Die(self.exception, notes) if notes else self


class Ask(Effect[Any, Any, Any]):
    __slots__ = ()


class FromFn(Effect[Any, Any, Any]):
    __slots__ = ("f",)

    def __init__(self, f: Callable[[Any], Any]) -> None:
        self.f: Final = f


class FromAsync(Effect[Any, Any, Any]):
    __slots__ = ("f",)

    def __init__(self, f: Callable[[Any], Awaitable[Any]]) -> None:
        self.f: Final = f


class Perform(Effect[Any, Any, Any]):
    """Runs `f(environment, scope)`, which returns the value or a `TypedFailure`.

    Attributes:
        shown: the call that created this effect, for `repr`: a name and its arguments. For a method, the
            name begins with a dot, and the first argument is its object.
        depth: how deep parallel operators are nested in it, if it is known to end without waiting.
    """

    __slots__ = ("depth", "f", "shown")

    def __init__(
        self,
        f: Callable[[Any, Scope], Awaitable[Any]],
        shown: tuple[Any, ...] = (),
        depth: int | None = None,
    ) -> None:
        self.f: Final = f
        self.shown: Final = shown
        self.depth: Final = depth


class Suspend(Effect[Any, Any, Any]):
    """Becomes `f(environment, scope)` when it is run. `shown` is as in `Perform`."""

    __slots__ = ("f", "shown")

    def __init__(self, f: Callable[[Any, Scope], AnyEffect], shown: tuple[Any, ...] = ()) -> None:
        self.f: Final = f
        self.shown: Final = shown


class FromGenerator(Effect[Any, Any, Any]):
    """Runs the effects that the generator `f(*args, **kwargs)` yields, and sends their values to it."""

    __slots__ = ("args", "f", "kwargs")

    def __init__(
        self,
        f: Callable[..., Generator[AnyEffect, Any, Any]],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.f: Final = f
        self.args: Final = args
        self.kwargs: Final = kwargs


class FromCoroutine(FromGenerator):
    """The same for the effects that the coroutine `f(*args, **kwargs)` awaits."""

    __slots__ = ()


class Attempt(Effect[Any, Any, Any]):
    """Calls `f(environment)`, plain or async. Exceptions of these types are failures."""

    __slots__ = ("errors", "f")

    def __init__(self, f: Callable[[Any], Any], errors: tuple[type[Exception], ...]) -> None:
        self.f: Final = f
        self.errors: Final = errors


class _Bind(Effect[Any, Any, Any]):
    """Continues after its source with the effect that `f` returns."""

    __slots__ = ("f", "source")

    def __init__(self, source: AnyEffect, f: Callable[[Any], AnyEffect]) -> None:
        self.source: Final = source
        self.f: Final = f


class AndThen(_Bind):
    __slots__ = ()


class OrElse(_Bind):
    __slots__ = ()


class TapErr(_Bind):
    """Runs `f(error)` on a failure, which continues afterwards."""

    __slots__ = ()


class Rescue(Effect[Any, Any, Any]):
    """Continues with `f(failed)`, or with the unchanged failure if that is None."""

    __slots__ = ("f", "source")

    def __init__(self, source: AnyEffect, f: Callable[[TypedFailure], AnyEffect | None]) -> None:
        self.source: Final = source
        self.f: Final = f


class StepDefinition(Protocol):
    """The part of a step's definition that effects use. The checkpoints implement it."""

    @property
    def name(self) -> str: ...

    async def execute_plainly(self, step: Step, env: Any, scope: Scope) -> Any:
        """Execute the step outside a durable run."""
        ...


class Step(Effect[Any, Any, Any]):
    """A durable step, run by `scope.fiber.execute`.

    Attributes:
        definition: its name and options.
        source: the effect that it runs.
        arguments: returns the arguments of the step, for a resume to compare, given how the run saves
            values; None to compare nothing.
        make_info: creates the step's info from the run id, the path and the attempt; `StepInfo` if None.
        shown: as in `Perform`; empty for a step that is shown by its name.
    """

    __slots__ = ("__weakref__", "arguments", "definition", "make_info", "shown", "source")

    def __init__(
        self,
        definition: StepDefinition,
        source: AnyEffect,
        arguments: Callable[..., tuple[str, str]] | None = None,
        make_info: Callable[[str, str, int], Any] | None = None,
        shown: tuple[Any, ...] = (),
    ) -> None:
        self.shown: Final = shown
        self.definition: Final[Any] = definition
        self.source: Final = source
        self.arguments: Final = arguments
        self.make_info: Final = make_info


class _Apply(Effect[Any, Any, Any]):
    """Applies `f` to a value, an error or the environment."""

    __slots__ = ("f", "source")

    def __init__(self, source: AnyEffect, f: Callable[[Any], Any]) -> None:
        self.source: Final = source
        self.f: Final = f


class Map(_Apply):
    __slots__ = ()


class MapErr(_Apply):
    __slots__ = ()


class Local(_Apply):
    """Runs its source in the environment `f(environment)`."""

    __slots__ = ()


class _Wrap(Effect[Any, Any, Any]):
    """Changes how its source ends."""

    __slots__ = ("source",)

    def __init__(self, source: AnyEffect) -> None:
        self.source: Final = source


class Reify(_Wrap):
    """Yields the `Result` of its source, and never fails."""

    __slots__ = ()


class Traced(_Wrap):
    """Fails with the error and its trail as one value."""

    __slots__ = ()


class InScope(Effect[Any, Any, Any]):
    """Runs its source in another scope."""

    __slots__ = ("scope", "source")

    def __init__(self, source: AnyEffect, scope: Scope) -> None:
        self.source: Final = source
        self.scope: Final = scope


class OnExit(Effect[Any, Any, Any]):
    """Runs `finalizer(exit)` once, however its source ends."""

    __slots__ = ("finalizer", "source")

    def __init__(self, source: AnyEffect, finalizer: Callable[[Exit[Any, Any]], AnyEffect]) -> None:
        self.source: Final = source
        self.finalizer: Final = finalizer


class Bracket(Effect[Any, Any, Any]):
    """Acquires a resource, uses it, and releases it. A cancellation never strikes in between."""

    __slots__ = ("release", "source", "use")

    def __init__(
        self,
        source: AnyEffect,
        release: Callable[[Any], AnyEffect],
        use: Callable[[Any], AnyEffect],
    ) -> None:
        self.source: Final = source
        self.release: Final = release
        self.use: Final = use


class Context(Effect[Any, Any, Any]):
    """Adds a message to the trail of every failure, and a note (PEP 678) to every defect.

    A function is called for the message only if there is a failure or a defect.
    """

    __slots__ = ("_message", "source")

    def __init__(self, source: AnyEffect, message: str | Callable[[], str]) -> None:
        self.source: Final = source
        self._message: Final = message

    @property
    def message(self) -> str:
        return self._message if isinstance(self._message, str) else self._message()


class Named(Effect[Any, Any, Any]):
    """Adds a note to every defect that crosses it, and notifies the observer of its begin and end."""

    __slots__ = ("name", "note", "source")

    def __init__(self, source: AnyEffect, name: str, note: str) -> None:
        self.source: Final = source
        self.name: Final = name
        self.note: Final = note


if IS_DEBUG:
    # The calls of bodies, steps and workflows, and operators such as `par`.
    for _node in (FromGenerator, Step, Perform):
        warn_if_never_run(_node)


_IMMEDIATE = frozenset({Pure, Fail, Die, Ask, FromFn})
_AROUND = frozenset({Map, MapErr, Reify, Context, Traced, Local, Named})
_DEEPEST = 20
"""How deep immediate operators may be nested. Deeper ones run in tasks, which have a stack each."""


def immediate_depth(effects: Iterable[AnyEffect]) -> int | None:
    """Return how deep the operator of these effects is nested if they all end without waiting.

    None if that is not known beforehand: an effect that a function returns, as in `and_then`, may wait.
    """
    deepest = 0
    for effect in effects:
        depth = _depth_of(effect)
        if depth is None or depth >= _DEEPEST:
            return None
        deepest = max(deepest, depth)
    return deepest + 1


def _depth_of(effect: Any) -> int | None:
    while effect.__class__ in _AROUND:
        effect = effect.source
    if effect.__class__ is Perform:
        return effect.depth
    return 0 if effect.__class__ in _IMMEDIATE else None


_DEPTH = 6
_WIDTH = 60
_ITEMS = 3

_NAMES = {
    "FromFn": "from_fn",
    "FromAsync": "from_async",
    "AndThen": "and_then",
    "OrElse": "or_else",
    "TapErr": "tap_err",
    "Rescue": "or_else",
    "MapErr": "map_err",
    "Reify": "result",
    "OnExit": "on_exit",
}


def describe(effect: Any, depth: int = _DEPTH) -> str:
    """Return an effect on one line, close to how it was written, down to a bounded depth."""
    if depth <= 0:
        return "..."
    kind: str = type(effect).__name__
    name = _NAMES.get(kind, kind.lower())
    function = getattr(effect, "finalizer", None) or getattr(effect, "f", None)
    operator: tuple[Any, ...] | None = getattr(function, "_effectflow_call", None)
    match effect:
        case Perform(shown=("par", effects, _)):
            name, parts = "par", effects
        case (
            Perform(shown=(called, *parts))
            | Suspend(shown=(called, *parts))
            | Step(shown=(called, *parts))
        ):
            name = called
        case _ if operator is not None:
            name, *parts = operator
            if hasattr(effect, "source"):
                name, parts = f".{name}", [effect.source, *parts]
        case Step():
            return f"step({effect.definition.name!r})"
        case FromGenerator():
            return describe_call(effect.f, effect.args, effect.kwargs)
        case FromFn() | FromAsync() | Attempt() if hasattr(effect.f, "function"):
            return repr(effect.f)
        case Attempt():
            parts = [effect.f, *effect.errors]
        case InScope():
            return describe(effect.source, depth)
        case OnExit():
            name, parts = ".on_exit", [effect.source, effect.finalizer]
        case Bracket():
            parts = [effect.source, effect.release, effect.use]
        case Named():
            name, parts = ".named", [effect.source, effect.name]
        case _:
            known = ("source", "f", "value", "error", "exception", "message")
            parts = [getattr(effect, part) for part in known if hasattr(effect, part)]
            name = f".{name}" if hasattr(effect, "source") else name
    return _call(name, parts, depth)


def describe_call(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the call of a function as it would be written."""
    shown = [_short(part, 1) for part in args]
    shown += [f"{name}={_short(part, 1)}" for name, part in kwargs.items()]
    return f"{getattr(function, '__name__', None) or repr(function)}({', '.join(shown)})"


class Options(dict[str, Any]):
    """The keyword arguments of a call that `repr` shows. Those that are None or False are left out."""


class Written(str):
    """The name of an argument in the user's code, which `repr` shows unquoted."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _call(name: str, arguments: Sequence[Any], depth: int) -> str:
    """Return `name(arguments)`, or `source.name(arguments)` for a name that begins with a dot."""
    receiver = ""
    if name.startswith("."):
        receiver, arguments, depth = _short(arguments[0], depth - 1), arguments[1:], depth - 1
    shown: list[str] = []
    for part in arguments:
        if isinstance(part, Options):
            shown += [
                f"{key}={_short(each, depth - 1)}"
                for key, each in part.items()
                if each is not None and each is not False
            ]
        else:
            shown.append(_short(part, depth - 1))
    return f"{receiver}{name}({', '.join(shown)})"


def show_arguments(arguments: Sequence[Any]) -> str:
    """Return arguments in parentheses as they would be written."""
    return _call("", arguments, _DEPTH)


def shortened(part: Any) -> str:
    """Return an effect, a function or a value as text of a bounded length."""
    return _short(part, 1)


def _short(part: Any, depth: int) -> str:
    """Return the name of a function or class, an effect down to `depth`, or a bounded `repr`."""
    if isinstance(part, Effect):
        return describe(part, depth)
    kind: type = part.__class__
    if kind is list or kind is tuple:
        items: Sequence[Any] = part
        shown = [_short(item, depth - 2) for item in items[:_ITEMS]] + ["..."] * (
            len(items) > _ITEMS
        )
        inner = ", ".join(shown)
        return f"[{inner}]" if kind is list else f"({inner}{',' * (len(items) == 1)})"
    name = getattr(part, "__qualname__", None)
    if isinstance(name, str):
        return name.rpartition("<locals>.")[2]
    text = repr(part)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."
