"""Faults of the file system: what they are, and how a process arms them."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
from dataclasses import dataclass
from enum import IntFlag
from pathlib import Path

__all__ = [
    "FAILED_CHANGE",
    "FAILED_SYNC",
    "FULL_DISK",
    "KILL",
    "TORN_WRITE",
    "Calls",
    "Fault",
    "arm",
    "built",
    "clear_faults",
]

SOURCE = Path(__file__).with_name("faults.c")


class Calls(IntFlag):
    """Kinds of system calls that change files."""

    WRITES = 1
    SYNCS = 2
    NAMES = 4
    ALL = 7


@dataclass(frozen=True)
class Fault:
    """What happens to the n-th of these calls.

    Attributes:
        calls: which calls are counted.
        error: the error number of the call; 0 kills the process before it.
        lasts: whether all later calls fail as well, until `clear_faults`.
        half: whether half of the data is written all the same.
    """

    calls: Calls
    error: int = 0
    lasts: bool = False
    half: bool = False


KILL = Fault(Calls.ALL)
TORN_WRITE = Fault(Calls.WRITES, half=True)
FAILED_CHANGE = Fault(Calls.WRITES | Calls.NAMES, errno.EIO)
FAILED_SYNC = Fault(Calls.SYNCS, errno.EIO)
FULL_DISK = Fault(Calls.WRITES | Calls.NAMES, errno.ENOSPC, lasts=True, half=True)


def built(folder: Path) -> Path:
    """Compile the library to preload into a folder, and return its path."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise RuntimeError(
            "no C compiler found: the library that makes file system calls fail is compiled here. "
            "Install gcc (apt-get install gcc libc6-dev) and run the tests again"
        )
    library = folder / "faults.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", SOURCE, "-o", library]
    subprocess.run(command, check=True)
    return library


def arm(folder: Path, fault: Fault, at: int, record: int) -> None:
    """Let this process meet the fault at the n-th call within the folder, or at none if `at` is 0.

    Record its changes to the files there to the open file `record`. Needs the library preloaded.
    """
    _library().faults_arm(
        os.fsencode(folder),
        int(fault.calls),
        ctypes.c_long(at),
        fault.error,
        int(fault.lasts),
        int(fault.half),
        record,
    )


def clear_faults() -> int:
    """End all faults. Return how many of the calls there were."""
    return _library().faults_clear()


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.faults_clear.restype = ctypes.c_long
    return library
