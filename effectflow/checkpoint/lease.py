"""The right to write to a run: a lease with an owner, an expiry and a fencing number.

The fencing number comes from Martin Kleppmann's "How to do distributed locking". It grows with every
claim, and a store rejects a write with an older one. So a process that sleeps past the end of its lease
can do no harm when it wakes.
"""

from __future__ import annotations

import os
import platform
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to append to one run.

    Attributes:
        run_id: the run.
        owner: the holder, as `str(Owner)`.
        fence: grows with every claim of the run; only the lease with the highest one is valid.
        expires_at: when others may claim the run, in seconds since the epoch.
    """

    run_id: str
    owner: str
    fence: int
    expires_at: float

    def is_held(self, now: float) -> bool:
        """Return whether the lease has not expired at `now` (seconds since the epoch) and its owner
        is not known to be dead."""
        if self.expires_at <= now:
            return False
        owner = Owner.parse(self.owner)
        return owner is None or not owner.is_dead()


@dataclass(frozen=True, slots=True)
class Owner:
    """The holder of a lease: a process on a host, and one claim of that process.

    Its text form is `pid 4711 on host (born, claim)`. Stores keep it, and errors show it.
    """

    pid: int
    host: str
    born: str
    claim: str

    @staticmethod
    def new() -> Owner:
        """Return a unique owner for this process."""
        pid = os.getpid()
        return Owner(pid, _host(), _own_birth(pid), os.urandom(6).hex())

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host} ({self.born}, {self.claim})"

    @staticmethod
    def parse(text: str) -> Owner | None:
        """Return the owner with this text form, or None for any other text."""
        try:
            left, right = text.removeprefix("pid ").rsplit(" (", 1)
            pid, host = left.split(" on ", 1)
            born, claim = right.removesuffix(")").split(", ", 1)
            return Owner(int(pid), host, born, claim)
        except ValueError:
            return None

    def is_dead(self) -> bool:
        """Return whether this owner's process is known to have ended.

        That can be known only of processes on this host since it booted. For others the answer is False,
        and their leases are valid until they expire.
        """
        if self.host != _host():
            return False
        born = _born(self.pid)
        if born is not None:
            return born != self.born
        # The process has ended, or /proc is missing or hides the processes of other users (hidepid).
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            return False
        return False


@cache
def _host() -> str:
    """Return a name for this host, its current boot and this process namespace."""
    parts = [platform.node()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8])
        parts.append(os.readlink("/proc/self/ns/pid").removeprefix("pid:").strip("[]"))
    except OSError:
        parts.append(f"{uuid.getnode():x}")
    return "/".join(parts)


@cache
def _own_birth(pid: int) -> str:
    """Return when this process started. A forked process has another pid, so it is not cached for it."""
    return _born(pid) or ""


_ENDED = "ended"
"""The birth of a zombie: a process that has ended but whose parent has not waited for it."""


def _born(pid: int) -> str | None:
    """Return when a process started, in kernel ticks; None if it has ended or /proc does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    state, started = fields[0], fields[19]
    return _ENDED if state in "ZX" else started
