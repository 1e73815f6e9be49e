"""Tools for tests of code that uses effectflow: virtual time, recorded events, failing stores, crashes.

`effectflow.testing.pytest_plugin` adds fixtures, markers and checks for pytest.
"""

from typing import TYPE_CHECKING

from effectflow.effects.imports import lazy_names

if TYPE_CHECKING:
    from effectflow.service.check import (
        Checked as Checked,
        Misfit as Misfit,
        check_runs as check_runs,
    )
    from effectflow.testing import store_conformance as store_conformance
    from effectflow.testing.crash import crash_everywhere as crash_everywhere
    from effectflow.testing.doubles import (
        RecordingObserver as RecordingObserver,
        TestClock as TestClock,
    )
    from effectflow.testing.exploration import (
        ExplorationFailed as ExplorationFailed,
        explore as explore,
    )
    from effectflow.testing.faulty_store import (
        Busy as Busy,
        Call as Call,
        Crashed as Crashed,
        CrashPoint as CrashPoint,
        Fault as Fault,
        FaultyStore as FaultyStore,
        SaveFails as SaveFails,
        Slow as Slow,
        StepAppend as StepAppend,
        TakenOver as TakenOver,
        Unavailable as Unavailable,
        after as after,
        before as before,
    )


if not TYPE_CHECKING:  # a type checker would take every name for one of this package
    # Every pytest session loads the plugin in this package, and most need none of these.
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".service.check": "Checked Misfit check_runs",
            "crash": "crash_everywhere",
            "doubles": "RecordingObserver TestClock",
            "exploration": "ExplorationFailed explore",
            "faulty_store": "Busy Call CrashPoint Crashed Fault FaultyStore SaveFails Slow StepAppend "
            "TakenOver Unavailable after before",
            "store_conformance": "store_conformance",
        },
    )
