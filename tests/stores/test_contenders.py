"""Several processes that claim, drive and message the runs of one store at once, and are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any

import anyio
import pytest

from effectflow.checkpoint.errors import RunEnded
from effectflow.checkpoint.run_info import RunStatus
from effectflow.checkpoint.store import CheckpointStore, find_run
from tests.stores.contender import GO, SUMMARY, Place, claimed, opened
from tests.stores.servers import wait_for

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    kind: str = request.param
    is_server = kind in ("postgres", "redis")
    folder = request.getfixturevalue(kind) if is_server else str(tmp_path)
    return kind, folder, f"contended_{time.time_ns()}"


class Contender:
    """A process that competes for the runs of a store. `told` are its results so far."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self._pid: int | None = None
        self._is_over = Event()

    def hear(self, result: Any) -> None:
        """Note what it has told."""
        if self._pid is None:
            self._pid = result
        elif result is None:
            self._is_over.set()
        else:
            self.told.append(result)

    def get_ready(self) -> None:
        """Wait until it has opened the store."""
        wait_for(lambda: self._pid is not None, seconds=60)

    def kill(self) -> None:
        """Kill it, if it lives."""
        assert self._pid is not None
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        wait_for(self._has_gone, seconds=60)

    def _has_gone(self) -> bool:
        assert self._pid is not None
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return True
        return False

    async def end(self) -> None:
        """Wait until it has done its work."""
        assert await anyio.to_thread.run_sync(self._is_over.wait, 120)


class Contenders:
    """The process that forks them."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.stores.contender"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._all: list[Contender] = []
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, result = json.loads(line)
            self._all[number].hear(result)

    @contextmanager
    def competing(self, place: Place, *roles: str) -> Iterator[list[Contender]]:
        """Run a process in each role. Kill those that are left when the block ends."""
        assert self._process.stdin is not None
        started: list[Contender] = []
        for role in roles:
            contender = Contender()
            self._all.append(contender)
            started.append(contender)
            request = json.dumps([len(self._all) - 1, role, place])
            print(request, file=self._process.stdin, flush=True)
        try:
            for contender in started:
                contender.get_ready()
            yield started
        finally:
            for contender in started:
                contender.kill()

    def close(self) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._reader.join(60)


@pytest.fixture(scope="module")
def contenders() -> Iterator[Contenders]:
    contenders = Contenders()
    yield contenders
    contenders.close()


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
async def test_each_due_run_is_claimed_by_one_process_within_the_limits(
    contenders: Contenders, place: Place
) -> None:
    async with opened(*place) as store:
        free = await create(store, "w", 40)
        limited = await create(store, "held", 20)
        with contenders.competing(place, *["claim"] * 4) as started:
            for one in started:
                await one.end()

        claims = [run_id for one in started for told in one.told for run_id in told]
        assert len(set(claims)) == len(claims)
        assert set(free) <= set(claims)
        assert len(set(claims) & set(limited)) == 5


@pytest.mark.anyio
async def test_processes_together_start_at_most_the_limit_of_runs_per_second(
    contenders: Contenders, place: Place
) -> None:
    async with opened(*place) as store:
        run_ids = await create(store, "started", 15)
        with contenders.competing(place, *["start"] * 3) as started:
            for one in started:
                await one.end()

        claims = [times for one in started for times in one.told]
        assert len(claims) == len(run_ids)
        # Five at once, then five more after one second, and after two.
        assert max(after for _, after in claims) - min(before for before, _ in claims) > 1.9


@pytest.mark.anyio
async def test_processes_that_are_killed_leave_their_runs_to_others(
    contenders: Contenders, place: Place
) -> None:
    chance = Random(7)
    async with opened(*place) as store:
        run_ids = await create(store, "w", 60)
        survivors = 2
        with contenders.competing(place, *["drive"] * (3 + survivors)) as started:
            for contender in started[survivors:]:
                await anyio.sleep(chance.uniform(0.01, 0.1))
                contender.kill()
            with anyio.fail_after(60):
                while not all(info.summary.status.has_ended for info in await store.find()):
                    await anyio.sleep(0.05)

        ends = Counter(run_id for one in started for run_id in one.told)
        assert max(ends.values()) == 1
        for run_id in run_ids:
            info = await find_run(store, run_id)
            assert info is not None
            assert (info.summary.status, info.lease) == (RunStatus.COMPLETED, None)
            bodies = [record.body for record in await store.read(run_id)]
            assert bodies == [b"0", b"1", b"2", b"3", b"end"]


@pytest.mark.anyio
async def test_a_message_is_taken_once_although_senders_and_takers_are_killed(
    contenders: Contenders, place: Place
) -> None:
    async with opened(*place) as store:
        await store.create("r", [b"0"], summary=SUMMARY)
        with contenders.competing(place, "send", "send", "take", "take", "take") as started:
            *senders, first, second, third = started
            for taker in (first, second):
                wait_for(lambda: sum(len(one.told) for one in started[2:]) > 20, seconds=60)
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
        assert {key for taker in started[2:] for key in taker.told} <= set(journal)
        for sender in senders:
            own = [key for key in journal + messages if key in set(sender.told)]
            assert own == sender.told
        for key in received:
            assert not await store.send("r", GO, key=key)


@pytest.mark.anyio
async def test_a_message_that_races_with_the_end_is_taken_or_rejected_or_newer(
    contenders: Contenders, place: Place
) -> None:
    """Newer than all that the last driver has looked at. It goes with the run."""
    async with opened(*place) as store:
        await store.create("r", [b"0"], summary=SUMMARY)
        with contenders.competing(place, "send", "send", "end") as started:
            for one in started:
                await one.end()

        journal = await keys_in_journal(store)
        assert len(journal) >= 19
        assert await store.mailbox("r") == []
        # On a busy machine, one of them may come too late for all of its messages.
        sent: list[list[str]] = [sender.told for sender in started[:2]]
        assert set(journal) <= set(chain(*sent))
        for keys in sent:
            taken = [key for key in journal if key in keys]
            assert taken == keys[: len(taken)]
        with pytest.raises(RunEnded):
            await store.send("r", GO, key="late")
