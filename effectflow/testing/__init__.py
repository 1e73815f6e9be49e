"""For tests of code that uses effectflow: virtual time, recorded events, crashes at every entry."""

from effectflow.testing import store_conformance
from effectflow.testing.clock import TestClock
from effectflow.testing.crash import CrashPoint, crash_everywhere
from effectflow.testing.recording import RecordingObserver

__all__ = ["CrashPoint", "RecordingObserver", "TestClock", "crash_everywhere", "store_conformance"]
