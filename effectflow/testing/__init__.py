"""Tools for tests of code that uses effectflow: virtual time, recorded events, failing stores, crashes.

`effectflow.testing.pytest_plugin` adds fixtures, markers and checks for pytest.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from effectflow.testing import store_conformance
    from effectflow.testing.crash import crash_everywhere
    from effectflow.testing.doubles import RecordingObserver, TestClock
    from effectflow.testing.faulty_store import (
        Busy,
        Call,
        Crashed,
        CrashPoint,
        Fault,
        FaultyStore,
        SaveFails,
        Slow,
        StepAppend,
        TakenOver,
        Unavailable,
        after,
        before,
    )

__all__ = [
    "Busy",
    "Call",
    "CrashPoint",
    "Crashed",
    "Fault",
    "FaultyStore",
    "RecordingObserver",
    "SaveFails",
    "Slow",
    "StepAppend",
    "TakenOver",
    "TestClock",
    "Unavailable",
    "after",
    "before",
    "crash_everywhere",
    "store_conformance",
]

_MODULES = {"RecordingObserver": "doubles", "TestClock": "doubles", "crash_everywhere": "crash"}
"""The modules of names; the others are in `faulty_store`."""


if not TYPE_CHECKING:  # a type checker would take every name for one of this package

    def __getattr__(name: str) -> object:
        # Every pytest session loads the plugin in this package, and most need none of these.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "store_conformance":
            return import_module(f"{__name__}.{name}")
        return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'faulty_store')}"), name)
