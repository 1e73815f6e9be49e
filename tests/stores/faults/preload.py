"""Faults of the file system, from Python: what they are, and how a process meets them."""

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
    "mend",
]

SOURCE = Path(__file__).with_name("faults.c")


class Calls(IntFlag):
    """Kinds of system calls that change something."""

    WRITES = 1
    SYNCS = 2
    NAMES = 4
    ALL = 7


@dataclass(frozen=True)
class Fault:
    """What becomes of the n-th of these calls.

    Attributes:
        calls: which calls are counted.
        error: what the call fails with; 0 kills the process before it.
        lasts: whether those after it fail as well, until the cause is mended.
        half: whether half of what was to be written is written all the same.
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
    """The library to preload, compiled into a folder."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise RuntimeError(
            "no C compiler: faults of the file system are made by a library that is compiled here. "
            "Install gcc (apt-get install gcc libc6-dev) and run the tests again"
        )
    library = folder / "faults.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", SOURCE, "-o", library]
    subprocess.run(command, check=True)
    return library


def arm(folder: Path, fault: Fault, at: int, record: int) -> None:
    """From now on this process meets the fault at the n-th call within the folder; at none with 0.

    What it does to the files there is recorded to an open file. Needs the library preloaded.
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


def mend() -> int:
    """No more faults. Gives how many of the calls there have been."""
    return _library().faults_mend()


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.faults_mend.restype = ctypes.c_long
    return library
