"""Effects as text, close to how they were written, so that one that was never run can be found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from effectflow.effects.effect import Effect

__all__ = ["describe", "describe_call"]

_DEPTH = 6
_WIDTH = 60
_ITEMS = 3

_METHODS = {
    "AndThen": "and_then",
    "OrElse": "or_else",
    "TapErr": "tap_err",
    "Rescue": "or_else",
    "Map": "map",
    "MapErr": "map_err",
    "Reify": "result",
    "Local": "local",
    "OnExit": "on_exit",
    "Context": "context",
    "Traced": "traced",
    "Named": "named",
}
_HIDDEN = ("source", "note", "trail")


def describe(effect: Any, depth: int = _DEPTH) -> str:
    """Return an effect on one line, down to a bounded depth."""
    if depth <= 0:
        return "..."
    shown: tuple[Any, ...] = getattr(effect, "shown", ())
    if shown:
        name, *arguments = shown
        return _call(name, arguments, depth)
    kind = type(effect).__name__
    if kind == "Step":
        return f"step({effect.definition.name!r})"
    if kind == "FromGenerator":
        return describe_call(effect.f, effect.args, effect.kwargs)
    slots: Sequence[str] = effect.__slots__
    parts = [getattr(effect, slot) for slot in slots if slot not in _HIDDEN]
    if kind == "OnExit":
        parts = [effect.finalizer]
    if kind == "Bracket":
        return _call("bracket", [[effect.source], effect.release, effect.use], depth)
    if kind in _METHODS:
        return _call(_METHODS[kind], [effect.source, *parts], depth)
    if "source" in slots:
        # Wrappers that the user did not write: a shield, a scope.
        return describe(effect.source, depth)
    if kind in ("FromFn", "FromAsync"):
        name = {"FromFn": "from_fn", "FromAsync": "from_async"}[kind]
        return repr(effect.f) if hasattr(effect.f, "function") else _call(name, parts, depth)
    return _call(kind.lower(), parts, depth)


def describe_call(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the call of a function as it would be written."""
    shown = [_short(part, 1) for part in args]
    shown += [f"{name}={_short(part, 1)}" for name, part in kwargs.items()]
    return f"{getattr(function, '__name__', None) or repr(function)}({', '.join(shown)})"


def _call(name: str, arguments: Sequence[Any], depth: int) -> str:
    """Return `source.name(arguments)` if there is a source, otherwise `name(arguments)`."""
    if arguments and isinstance(arguments[0], Effect):
        inner = ", ".join(_short(part, depth - 2) for part in arguments[1:])
        return f"{describe(arguments[0], depth - 1)}.{name}({inner})"
    return f"{name}({', '.join(_short(part, depth - 1) for part in arguments)})"


def _short(part: Any, depth: int) -> str:
    """Return the name of a function or class, an effect down to `depth`, or a bounded `repr`."""
    if isinstance(part, Effect):
        return describe(part, depth)
    if isinstance(part, list | tuple):
        items = cast("Sequence[Any]", part)
        inner = [_short(item, depth - 2) for item in items[:_ITEMS]]
        return f"[{', '.join(inner + ['...'] * (len(items) > _ITEMS))}]"
    name = getattr(part, "__qualname__", None)
    if isinstance(name, str):
        return name
    text = repr(part)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."
