"""The right to write to a run: a lease with an owner, an expiry and a fencing token.

The fencing token comes from Martin Kleppmann's "How to do distributed locking". It grows with every
claim, and a store rejects an append with an older one. So a process that sleeps past the end of its lease
can do no harm when it wakes.

The clock may be changed while a run is driven. So within one boot of a host, a lease expires by the time
since that boot, which nothing changes. Other hosts cannot compare that time, and use the clock of the
store.
"""

from __future__ import annotations

import os
import platform
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from effectflow.checkpoint.errors import LeaseLost, RunBusy, RunNotFound
from effectflow.checkpoint.schema import LATEST, frozen
from effectflow.effects.event_loop import CallSoon, call_soon_from_threads, is_closed

if TYPE_CHECKING:
    from effectflow.checkpoint.run_info import RunInfo, RunSummary
    from effectflow.checkpoint.store import CheckpointStore, Taken

_SECONDS_TO_DELETE = 30.0


@frozen
class Lease:
    """The right to append to one run.

    Attributes:
        run_id: the run.
        owner: the holder, as `str(Owner)`.
        fence: the fencing token. It grows with every claim of the run, and only the lease with the
            highest one is valid.
        expires_at: when others may claim the run, in seconds since the epoch by the store's clock.
        expires_at_uptime: the same in seconds since the boot of the owner's host; None if that is
            unknown. Processes of the same boot compare this time.
    """

    run_id: str
    owner: str
    fence: int
    expires_at: float
    expires_at_uptime: float | None = None

    @staticmethod
    def of(run_id: str, owner: str, fence: int, *, seconds: float, now: float) -> Lease:
        """Return a lease that is valid for this many seconds from `now`, the time of the store.

        It ends before the year 10000, and not before the boot of the host, so that every store can keep
        it.
        """
        up, seconds = uptime(), min(seconds, LATEST - now)
        until = None if up is None else max(0.0, up + seconds)
        return Lease(run_id, owner, fence, now + seconds, until)

    def renewed(self, seconds: float, *, now: float) -> Lease:
        """Return the lease, valid for this many seconds from `now`, the time of the store."""
        return Lease.of(self.run_id, self.owner, self.fence, seconds=seconds, now=now)

    def expires_in(self, now: float) -> float:
        """Return the seconds until it expires at `now`, in seconds since the epoch."""
        if self.expires_at_uptime is not None:
            owner, up = Owner.parse(self.owner), uptime()
            if up is not None and owner is not None and owner.is_of_this_boot:
                return self.expires_at_uptime - up
        return self.expires_at - now

    def is_held(self, now: float, is_dead: Callable[[Owner], bool] | None = None) -> bool:
        """Return whether the lease has not expired at `now` and its owner is not known to be dead.

        Parameters:
            now: the time in seconds since the epoch.
            is_dead: whether an owner is known to be dead; `Owner.is_dead` by default.
        """
        if self.expires_in(now) <= 0:
            return False
        owner = Owner.parse(self.owner)
        return owner is None or not (owner.is_dead() if is_dead is None else is_dead(owner))


@frozen
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

    @property
    def is_of_this_boot(self) -> bool:
        """Whether it claimed on this host since the last boot, perhaps in another container."""
        boot = _boot()
        return boot is not None and self.host.split("/")[1:-1] == [boot]

    def is_dead(self) -> bool:
        """Return whether this owner's process, or its claim within this process, is known to have ended.

        This is known only of processes on this host since it booted, and not on Windows. For all others,
        return False: their leases are valid until they expire.
        """
        if self.host != _host():
            return False
        if self.claim in _claims and self.pid == os.getpid():
            call_soon = _claims[self.claim]
            return call_soon is None or is_closed(call_soon)
        born = _born(self.pid)
        if born is not None:
            return born != self.born
        # The process has ended, or /proc is missing or hides the processes of other users (hidepid).
        if sys.platform == "win32":
            # There, a signal 0 is Ctrl-C.
            return False
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            return False
        return False


def deaths_seen_once() -> Callable[[Owner], bool]:
    """Return a function like `Owner.is_dead` for many leases, which checks each process only once."""
    seen: dict[tuple[int, str, str], bool] = {}

    def is_dead(owner: Owner) -> bool:
        if owner.pid == os.getpid():
            return owner.is_dead()
        process = owner.pid, owner.host, owner.born
        if process not in seen:
            seen[process] = owner.is_dead()
        return seen[process]

    return is_dead


_claims: dict[str, CallSoon | None] = {}
"""The claims of this process by `Owner.claim`, with the event loops of their runs. None means that the
claim ended but may still hold the run, because the store did not release it."""


def begin_claim() -> Owner:
    """Return a new owner for a claim of this process. Call `end_claim` once it holds nothing.

    The owner is dead once the running event loop is closed.
    """
    owner = Owner.new()
    _claims[owner.claim] = call_soon_from_threads()
    return owner


async def claim_or_release(
    store: CheckpointStore, run_id: str, *, seconds: float
) -> tuple[Owner, Taken]:
    """Claim a run for a new owner, and return both. Call `end_claim` after the lease is released.

    A cancelled claim may have taken effect, so this repeats it and releases it.
    """
    owner = begin_claim()
    try:
        return owner, await store.claim(run_id, owner=str(owner), seconds=seconds)
    except Exception as error:
        end_claim(owner, is_released=isinstance(error, RunBusy | RunNotFound))
        raise
    except BaseException:
        is_released = False
        # The cancellation continues, even if the store fails here.
        with anyio.move_on_after(5, shield=True), suppress(Exception):
            taken = await store.claim(run_id, owner=str(owner), seconds=seconds)
            await store.release(taken.lease)
            is_released = True
        end_claim(owner, is_released=is_released)
        raise


async def create_or_delete(
    store: CheckpointStore,
    run_id: str,
    bodies: Sequence[bytes],
    *,
    summary: RunSummary,
    seconds: float,
) -> tuple[Owner, RunInfo] | None:
    """Create a run that a new owner holds, and return both; None if the run exists.

    Call `end_claim` after the lease is released. A creation that failed or was cancelled may have taken
    effect, so this deletes the run, which has not begun.
    """
    owner = begin_claim()
    try:
        info = await store.create(
            run_id, bodies, summary=summary, owner=str(owner), seconds=seconds
        )
    except BaseException:
        is_gone = False
        # The error continues, even if the store fails here.
        with anyio.move_on_after(5, shield=True), suppress(Exception):
            await _delete_created(store, run_id, str(owner))
            is_gone = True
        end_claim(owner, is_released=is_gone)
        raise
    if info is None:
        end_claim(owner, is_released=True)
        return None
    return owner, info


async def _delete_created(store: CheckpointStore, run_id: str, owner: str) -> None:
    """Delete a run if this owner has created it."""
    with suppress(RunNotFound):
        taken = await store.claim(run_id, owner=owner, seconds=_SECONDS_TO_DELETE)
        if taken.info.lease is not None and taken.info.lease.owner == owner:
            await store.delete(run_id, lease=taken.lease)
        else:
            await store.release(taken.lease)


async def delete_unchanged(store: CheckpointStore, known: RunInfo) -> bool:
    """Delete a run if it is as it was, and no live owner holds it. Return whether it is deleted."""

    async def is_unchanged(info: RunInfo) -> bool:
        return info.is_unchanged(known)

    try:
        return await delete_claimed(store, known.run_id, is_unchanged)
    except (RunBusy, RunNotFound, LeaseLost):
        return False


async def delete_claimed(
    store: CheckpointStore, run_id: str, is_wanted: Callable[[RunInfo], Awaitable[bool]]
) -> bool:
    """Claim a run, and delete it if that is wanted when it is held. Return whether it is deleted.

    Raise RunNotFound, RunBusy, LeaseLost, and what `is_wanted` raises.
    """
    owner, taken = await claim_or_release(store, run_id, seconds=_SECONDS_TO_DELETE)
    is_released = False
    try:
        if await is_wanted(taken.info):
            await store.delete(run_id, lease=taken.lease)
            is_released = True
        return is_released
    finally:
        if not is_released:
            with anyio.move_on_after(5, shield=True):
                await store.release(taken.lease)
                is_released = True
        end_claim(owner, is_released=is_released)


def end_claim(owner: Owner, *, is_released: bool) -> None:
    """Note that this process has ended a claim. If it was not released, its owner counts as dead."""
    if is_released:
        _claims.pop(owner.claim, None)
    else:
        _claims[owner.claim] = None


def uptime() -> float | None:
    """Return the seconds since this host booted, asleep or awake; None if its boots have no names."""
    return None if _boot() is None else time.clock_gettime(time.CLOCK_BOOTTIME)


@cache
def _boot() -> str | None:
    """Return a name for the current boot of this host; None if it has none, as outside of Linux."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return None


@cache
def _host() -> str:
    """Return a name for this host, its current boot and this process namespace."""
    try:
        namespace = os.readlink("/proc/self/ns/pid").removeprefix("pid:").strip("[]")
    except OSError:
        namespace = ""
    boot = _boot()
    if boot is None or not namespace:
        return f"{platform.node()}/{uuid.getnode():x}"
    return f"{platform.node()}/{boot}/{namespace}"


@cache
def _own_birth(pid: int) -> str:
    """Return when this process started. A forked process has another pid, so it is not cached for it."""
    return _born(pid) or ""


_ENDED = "ended"
"""The start of a zombie: a process that has ended, but whose parent has not waited for it."""


def _born(pid: int) -> str | None:
    """Return when a process started, in kernel ticks; None if it has ended or /proc does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    state, started = fields[0], fields[19]
    return _ENDED if state in "ZX" else started
