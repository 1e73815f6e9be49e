"""Who may write to a run: a lease with an owner, an expiry and a fencing number.

The fencing number is from Martin Kleppmann's "How to do distributed locking": it grows by one with
every claim, and a store refuses a write that carries an older one, so a process that slept through
the end of its lease can do no harm when it wakes.
"""

from __future__ import annotations

import os
import platform
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["Lease", "Owner"]


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to append to one run.

    Attributes:
        run_id: the run.
        owner: who holds it, as `str(Owner)`.
        fence: grows by one with every claim of the run; the highest one is the only valid one.
        expires_at: when others may claim it, in seconds since the epoch.
    """

    run_id: str
    owner: str
    fence: int
    expires_at: float

    def is_held(self, now: float) -> bool:
        """Whether it holds at `now`, seconds since the epoch: not expired, and its owner not dead."""
        if self.expires_at <= now:
            return False
        owner = Owner.parse(self.owner)
        return owner is None or not owner.is_dead()


@dataclass(frozen=True, slots=True)
class Owner:
    """A claimant: a process on a host, and which of its claims this is.

    The text form is `pid 4711 on host (born, claim)`; it is what a store keeps and what an error shows.
    """

    pid: int
    host: str
    born: str
    claim: str

    @staticmethod
    def new() -> Owner:
        """A claimant for this process that equals no other."""
        pid = os.getpid()
        return Owner(pid, _host(), _own_birth(pid), uuid.uuid4().hex[:12])

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host} ({self.born}, {self.claim})"

    @staticmethod
    def parse(text: str) -> Owner | None:
        """The owner that wrote this text, or None if it has another form."""
        try:
            left, right = text.removeprefix("pid ").rsplit(" (", 1)
            pid, host = left.split(" on ", 1)
            born, claim = right.removesuffix(")").split(", ", 1)
            return Owner(int(pid), host, born, claim)
        except ValueError:
            return None

    def is_dead(self) -> bool:
        """Whether this owner's process is known to have ended.

        Only a process of this host and of this boot can be known to be dead; of any other the
        answer is False, and its lease holds until it expires.
        """
        if self.host != _host():
            return False
        born = _born(self.pid)
        if born is not None:
            return born != self.born
        # It is gone; or there is no /proc, or one that hides the processes of others (hidepid).
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            return False
        return False


@cache
def _host() -> str:
    """A name for this host, this boot of it and this process namespace."""
    parts = [platform.node()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8])
        parts.append(os.readlink("/proc/self/ns/pid").removeprefix("pid:").strip("[]"))
    except OSError:
        parts.append(f"{uuid.getnode():x}")
    return "/".join(parts)


@cache
def _own_birth(pid: int) -> str:
    """When this process started. A forked one has another pid, and asks again."""
    return _born(pid) or ""


_ENDED = "ended"
"""The birth of a process that has ended, and that its parent has not taken note of: a zombie."""


def _born(pid: int) -> str | None:
    """When a process started, in the kernel's ticks; None if it is gone or cannot be told."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    state, started = fields[0], fields[19]
    return _ENDED if state in "ZX" else started
