"""Tools for tests of code that uses effectflow: virtual time, recorded events, failing stores, crashes.

`effectflow.testing.pytest_plugin` adds fixtures and a marker for pytest.
"""

from effectflow.testing import store_conformance
from effectflow.testing.clock import TestClock
from effectflow.testing.crash import crash_everywhere
from effectflow.testing.faulty_store import (
    Busy,
    Call,
    Crashed,
    CrashPoint,
    Fault,
    FaultyStore,
    SaveFails,
    Slow,
    TakenOver,
    Unavailable,
)
from effectflow.testing.recording import RecordingObserver

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
    "TakenOver",
    "TestClock",
    "Unavailable",
    "crash_everywhere",
    "store_conformance",
]
