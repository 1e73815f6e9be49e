"""Debug mode: warn of effects that are created and never run, as Python does for coroutines.

`python -X dev` turns it on, or the environment variable `EFFECTFLOW_DEBUG`. In any other process, the
nodes stay as they are, and the interpreter only tests a constant.
"""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from collections.abc import Callable
from os.path import dirname, sep
from typing import Any, Final, NamedTuple

IS_DEBUG: Final = sys.flags.dev_mode or (
    not sys.flags.ignore_environment and bool(os.environ.get("EFFECTFLOW_DEBUG"))
)
"""Whether this process is in debug mode."""

_LIBRARY = dirname(dirname(__file__)) + sep


class _Creation(NamedTuple):
    """Where an effect was created.

    Attributes:
        begun: how many effects had begun by then.
        warned: what Python has already warned of in that module.
    """

    file: str
    line: int
    module: str
    begun: int
    warned: dict[Any, Any]


_creations: dict[int, _Creation] = {}
_begun = 0


def begin() -> None:
    """Count an effect that begins. What exists now may be a part of it, which need not be reached."""
    global _begun
    _begun += 1


def warn_if_never_run(node: type[Any]) -> None:
    """Emit a `RuntimeWarning` for an effect of this kind that is destroyed before any effect has begun.

    So it is not told that an unused fallback, or a branch that a failure skips, was never run.
    """
    initialize: Callable[..., None] = node.__init__

    def create(effect: Any, *args: Any, **kwargs: Any) -> None:
        initialize(effect, *args, **kwargs)
        _creations[id(effect)] = _creation()

    def destroy(effect: Any) -> None:
        created = _creations.pop(id(effect), None)
        if created is not None and created.begun == _begun:
            begin()  # its parts are destroyed next
            file, line, module, _, warned = created
            message = f"{effect!r} was created and never run"
            warnings.warn_explicit(message, RuntimeWarning, file, line, module, warned)

    node.__init__, node.__del__ = create, destroy


def _creation() -> _Creation:
    """Describe the call that led into the library."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]  # as in asyncio's debug mode
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARY):
        frame = frame.f_back
    module, warned = frame.f_globals.get("__name__", ""), "__warningregistry__"
    registry = frame.f_globals.setdefault(warned, {})
    return _Creation(frame.f_code.co_filename, frame.f_lineno, module, _begun, registry)


# What the end of the program destroys could have been run.
atexit.register(_creations.clear)
