"""What tests of durable workflows need: a recording observer, and a crash at every entry."""

from effectflow.testing.crash import CrashPoint, crash_everywhere
from effectflow.testing.recording import RecordingObserver

__all__ = ["CrashPoint", "RecordingObserver", "crash_everywhere"]
