"""Several processes that claim, drive and message the runs of one store at once, and are killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any, TypeAlias

import anyio
import pytest

from effectflow.checkpoint import CheckpointStore, RunEnded, RunStatus
from tests.stores.contender import GO, SUMMARY, claimed, opened
from tests.stores.servers import wait_for

ROOT = Path(__file__).parents[2]


Place: TypeAlias = tuple[str, str, str]
"""Where a store is: the arguments of `opened`."""


@pytest.fixture(params=["file", "sqlite", "postgres", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    kind: str = request.param
    is_server = kind in ("postgres", "redis")
    folder = request.getfixturevalue(kind) if is_server else str(tmp_path)
    return kind, folder, f"contended_{time.time_ns()}"


class Contender:
    """A process with a role of `contender.py`. `told` are its results so far."""

    def __init__(self, role: str, place: Place) -> None:
        self.told: list[Any] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.stores.contender", role, *place],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):
                self.told.append(json.loads(line))

    def get_ready(self) -> None:
        """Wait until it has opened the store."""
        wait_for(lambda: bool(self.told), seconds=60)
        assert self.told.pop(0) == "ready"

    def begin(self) -> None:
        """Let it begin its role."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Kill it, and read all that it has told."""
        self._process.kill()
        self.wait()

    def wait(self) -> int:
        """Wait for its end, and return its exit code."""
        with self._process:
            self._reader.join(120)
        return self._process.returncode


@contextmanager
def contending(place: Place, *roles: str) -> Iterator[list[Contender]]:
    """Run a process in each role, until the block ends."""
    contenders = [Contender(role, place) for role in roles]
    try:
        for contender in contenders:
            contender.get_ready()
        for contender in contenders:
            contender.begin()
        yield contenders
    finally:
        for contender in contenders:
            contender.kill()


async def create(store: CheckpointStore, workflow: str, count: int) -> list[str]:
    """Create runs that are due. Return their ids."""
    run_ids = [f"{workflow}{number}" for number in range(count)]
    for number, run_id in enumerate(run_ids):
        summary = replace(SUMMARY, workflow=workflow, due_at=1.0, priority=number % 3)
        assert await store.create(run_id, [b"0"], summary=summary)
    return run_ids


async def keys_in_journal(store: CheckpointStore) -> list[str]:
    return [record.body.decode() for record in (await store.read("r"))[1:]]


@pytest.mark.anyio
async def test_each_due_run_is_claimed_by_one_process_within_the_limits(place: Place) -> None:
    async with opened(*place) as store:
        free = await create(store, "w", 40)
        limited = await create(store, "held", 20)
        with contending(place, *["claim"] * 4) as contenders:
            codes = [await anyio.to_thread.run_sync(one.wait) for one in contenders]

        claims = [run_id for one in contenders for told in one.told for run_id in told]
        assert codes == [0] * 4
        assert len(set(claims)) == len(claims)
        assert set(free) <= set(claims)
        assert len(set(claims) & set(limited)) == 5


@pytest.mark.anyio
async def test_processes_together_start_only_so_many_runs_in_a_second(place: Place) -> None:
    async with opened(*place) as store:
        run_ids = await create(store, "started", 15)
        with contending(place, *["start"] * 3) as contenders:
            codes = [await anyio.to_thread.run_sync(one.wait) for one in contenders]

        times = sorted(at for one in contenders for at in one.told)
        assert codes == [0] * 3
        assert len(times) == len(run_ids)
        # Five at once, then five more after one second, and after two.
        assert times[-1] - times[0] > 1.9


@pytest.mark.anyio
async def test_processes_that_are_killed_leave_their_runs_to_others(place: Place) -> None:
    chance = Random(7)
    async with opened(*place) as store:
        run_ids = await create(store, "w", 150)
        survivors = 2
        with contending(place, *["drive"] * (3 + survivors)) as contenders:
            for contender in contenders[survivors:]:
                await anyio.sleep(chance.uniform(0.02, 0.2))
                contender.kill()
            with anyio.fail_after(60):
                while not all(info.summary.status.has_ended for info in await store.find()):
                    await anyio.sleep(0.05)

        ends = Counter(run_id for one in contenders for run_id in one.told)
        assert max(ends.values()) == 1
        for run_id in run_ids:
            info = await store.info(run_id)
            assert info is not None
            assert (info.summary.status, info.lease) == (RunStatus.COMPLETED, None)
            bodies = [record.body for record in await store.read(run_id)]
            assert bodies == [b"0", b"1", b"2", b"3", b"end"]


@pytest.mark.anyio
async def test_a_message_is_taken_once_although_senders_and_takers_are_killed(
    place: Place,
) -> None:
    async with opened(*place) as store:
        await store.create("r", [b"0"], summary=SUMMARY)
        with contending(place, "send", "send", "take", "take", "take") as contenders:
            *senders, first, second, third = contenders
            for taker in (first, second):
                wait_for(lambda: sum(len(one.told) for one in contenders[2:]) > 20, seconds=60)
                taker.kill()
            for sender in senders:
                sender.kill()
            third.kill()

        await claimed(store)
        messages = [message.key for message in await store.mailbox("r")]
        journal = await keys_in_journal(store)
        received = Counter(journal + messages)
        assert max(received.values()) == 1
        for sender in senders:
            assert set(sender.told) <= set(received)
        # What a taker has told is in the journal, in the order in which each sender has sent it.
        assert {key for taker in contenders[2:] for key in taker.told} <= set(journal)
        for sender in senders:
            own = [key for key in journal + messages if key in set(sender.told)]
            assert own == sender.told
        for key in received:
            assert not await store.send("r", GO, key=key)


@pytest.mark.anyio
async def test_a_message_that_races_with_the_end_is_taken_or_refused_or_newer(place: Place) -> None:
    """Newer than all that the last driver has looked at. It goes with the run."""
    async with opened(*place) as store:
        await store.create("r", [b"0"], summary=SUMMARY)
        with contending(place, "send", "send", "end") as contenders:
            codes = [await anyio.to_thread.run_sync(one.wait) for one in contenders]

        assert codes == [0, 0, 0]
        journal = await keys_in_journal(store)
        assert len(journal) >= 19
        assert await store.mailbox("r") == []
        for sender in contenders[:2]:
            taken = [key for key in journal if key.split()[0] == sender.told[0].split()[0]]
            assert taken == sender.told[: len(taken)]
        with pytest.raises(RunEnded):
            await store.send("r", GO, key="late")
