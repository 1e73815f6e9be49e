"""A process that controls a run dies at any write, or the one that drives it: all happened, or nothing.

Then the same is asked again, which is harmless, and the run ends as without any death.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from effectflow import (
    Client,
    Do,
    Effect,
    Signal,
    compensate,
    par,
    saga,
    step,
    workflow,
)
from effectflow.checkpoint import (
    Batch,
    ChangeRejected,
    CheckpointError,
    CheckpointStore,
    Lease,
    RunCancelled,
    RunEnded,
    RunInfo,
    RunQuery,
    RunStatus,
    find_run,
    read_entries,
)
from effectflow.checkpoint.store import service_of
from effectflow.effects import from_async, never
from effectflow.service import Handle
from effectflow.stores import MemoryStore, SqliteStore
from effectflow.testing import FaultyStore, SaveFails, Unavailable
from effectflow.testing.crash import crash_points
from effectflow.testing.faulty_store import Call, Operation
from effectflow.testing.forwarding import ForwardingStore
from tests.apps import App, Broken, cut_off, note
from tests.programs import Program
from tests.service.conftest import Service
from tests.service.lives import (
    IN_TURNS,
    act,
    all_are,
    ending_of,
    left_suspended,
    working,
)
from tests.sweeps import EVERY, in_turn, visited

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

approval: Signal[str] = Signal("approval", str)


@step(at_most_once=True)
def charge(amount: int) -> Effect[App, Broken, str]:
    return note("charge").and_then(lambda _: never()).map(lambda _: f"paid {amount}")


@step(retryable=False)
def deliver(paid: str) -> Effect[App, Broken, str]:
    return note("deliver").map(lambda _: f"delivered, {paid}")


@workflow
def waiting(_: None) -> Do[App, Any, str]:
    booked = compensate(act("book"), lambda _: act("unbook"))
    return (yield from saga(booked.and_then(lambda _: approval.wait()).and_then(act)))


@workflow
def paying(amount: int) -> Do[App, Broken, str]:
    paid = yield from charge(amount)
    return (yield from act(paid))


@workflow
def delivering(_: None) -> Do[App, Broken, str]:
    paid = yield from act("paid")
    return (yield from deliver(paid))


WORKFLOWS = [waiting, paying, delivering]


# The process that controls.


async def suspended(service: Service) -> None:
    await left_suspended(service, waiting)


async def submitted(service: Service) -> None:
    await service.client.submit(waiting, None, run_id="r")


async def paused(service: Service) -> None:
    await suspended(service)
    await (await asking(service, "bob")).pause()


async def unknown(service: Service) -> None:
    """Leave a run whose process has died while its card was charged."""
    app = App(service.checkpoints(), service.world)
    await cut_off(paying.start(7, run_id="r"), app)


async def failed(service: Service) -> None:
    service.world.failing.add("deliver#1")
    await delivering.start(run_id="r").run(App(service.checkpoints(), service.world))


async def completed(service: Service) -> None:
    await delivering.start(run_id="r").run(App(service.checkpoints(), service.world))


async def asking(service: Service, by: str = "ann") -> Handle[Any, Any]:
    info = await find_run(service.store, "r")
    assert info is not None
    [known] = [one for one in WORKFLOWS if one.name == info.summary.workflow]
    return Client(service.checkpoints(), by=by).handle(known, "r")


async def cancel(service: Service) -> None:
    await (await asking(service)).cancel()


async def pause(service: Service) -> None:
    await (await asking(service)).pause()


async def unpause(service: Service) -> None:
    await (await asking(service)).unpause()


async def retry(service: Service) -> None:
    await (await asking(service)).retry()


async def rerun(service: Service) -> None:
    await (await asking(service)).rerun(run_id="again")


async def delete(service: Service) -> None:
    await (await asking(service)).delete()


async def prune(service: Service) -> None:
    await Client(service.checkpoints(), by="ann").prune(before=0)


async def complete_step(service: Service) -> None:
    await done(service, paying.complete_step("r", "charge", "in cash", by="ann"))


async def fail_step(service: Service) -> None:
    await done(service, paying.fail_step("r", "charge", Broken("declined"), by="ann"))


async def fork(service: Service) -> None:
    changes = {"act": "paid late"}
    made = delivering.fork("r", changes=changes, new_run_id="again", by="ann")
    await done(service, made)


async def done(service: Service, control: Effect[App, CheckpointError, Any]) -> None:
    await control.run_or_raise(App(service.checkpoints(), service.world))


CONTROLS = [
    (suspended, cancel),
    (submitted, cancel),
    (failed, cancel),
    (paused, cancel),
    (suspended, pause),
    (submitted, pause),
    (paused, unpause),
    (failed, retry),
    (unknown, complete_step),
    (unknown, fail_step),
    (completed, rerun),
    (completed, fork),
    (completed, delete),
    (completed, prune),
]


async def seen_in(service: Service) -> dict[str, object]:
    """Return what a control may change, and who asked for it."""
    return {
        info.run_id: (
            str(info.summary.status),
            [type(one).__name__ for one in await read_entries(service.store, info.run_id)],
            [message.topic for message in await service.store.mailbox(info.run_id)],
            await asked_by(service, info.run_id),
        )
        for info in await service.store.find(RunQuery(limit=None))
    }


async def asked_by(service: Service, run_id: str) -> list[str]:
    """Return who has changed a run, according to its journal."""
    entries = await read_entries(service.store, run_id)
    return [by for entry in entries if (by := getattr(entry, "by", "")) and "@" not in by]


async def ended(service: Service) -> dict[str, dict[str, object]]:
    """Let workers end all runs, also those that are paused, and return how."""
    handle = Client(service.checkpoints(), by="bob").handle(waiting, "r")
    async with working(service, *WORKFLOWS):
        with suppress(CheckpointError):
            await handle.send(approval, "approved", idempotency_key="1")
        with suppress(CheckpointError):
            await handle.unpause()
        await all_are(service, RunStatus.COMPLETED, RunStatus.CANCELLED, RunStatus.FAILED)
    return await ending_of(service)


@EVERY
@pytest.mark.parametrize(("prepare", "control"), CONTROLS)
async def test_a_control_that_is_killed_or_fails_at_any_call_happens_once_or_not_at_all(
    prepare: Callable[[Service], Awaitable[None]],
    control: Callable[[Service], Awaitable[None]],
    every: int,
) -> None:
    whole = Service(MemoryStore())
    await prepare(whole)
    before, watched = await seen_in(whole), FaultyStore(whole.store)
    await control(Service(watched, whole.world))
    after = await seen_in(whole)
    expected = await ended(whole), whole.world.done
    calls: list[Operation] = [call.operation for call in watched.calls if call.operation != "renew"]
    faults = [
        *crash_points(watched),
        *(SaveFails(one.append, one.is_durable, one.operation) for one in crash_points(watched)),
        *(Unavailable(one, calls[: at + 1].count(one)) for at, one in enumerate(calls)),
    ]
    for fault in visited(faults, every):
        service = Service(MemoryStore())
        await prepare(service)
        store = FaultyStore(service.store, [fault])
        with store.life(), suppress(CheckpointError):
            await control(Service(store, service.world))
        assert not store.unmet, fault
        found = await seen_in(service)
        assert found in (before, after), f"{fault}: {found}"
        try:
            await control(service)
        except CheckpointError:
            # It has happened already.
            assert found == await seen_in(service) == after, fault
        assert found == after or await seen_in(service) == after, fault
        assert (await ended(service), service.world.done) == expected, fault


# The process that drives.


@dataclass
class Gate:
    """What a step in progress waits for."""

    began: anyio.Event
    opened: anyio.Event


gates: dict[str, Gate] = {}


@step
def slow(name: str) -> Effect[App, Broken, str]:
    """Wait for the gate of this name."""

    async def wait(_: object) -> str:
        gates[name].began.set()
        await gates[name].opened.wait()
        return name

    return note(name).and_then(lambda _: from_async(wait))


@workflow
def working_long(_: None) -> Do[App, Any, str]:
    booked = compensate(act("book"), lambda _: act("unbook"))
    both = par(slow("one"), slow("two"))
    return (yield from saga(booked.and_then(lambda _: both).and_then(lambda _: act("last"))))


async def drive(service: Service, store: FaultyStore) -> None:
    """Let one worker after another drive the runs: one dies at the fault of the store."""
    while True:
        with store.life():
            async with working(Service(store, service.world), working_long):
                await anyio.sleep_forever()


async def cancelled(handle: Handle[Any, Any]) -> None:
    assert isinstance((await handle.result()).failure(), RunCancelled)


async def paused_once(handle: Handle[Any, Any]) -> None:
    while await handle.status() is not RunStatus.PAUSED:
        await anyio.sleep(0.003)
    await handle.unpause()
    await handle.result()


DRIVEN = {"cancel": cancelled, "pause": paused_once}


async def controlled(control: str, store: FaultyStore) -> tuple[object, ...]:
    """Control a run while two of its steps are in progress, and return how it ended."""
    service = Service(service_of(store.store, "a test"))
    for name in ("one", "two"):
        gates[name] = Gate(anyio.Event(), anyio.Event())
    handle = await Client(service.checkpoints(), by="ann").submit(working_long, None, run_id="r")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(drive, service, store)
        with anyio.fail_after(10):
            for gate in gates.values():
                await gate.began.wait()
            for _ in range(2):
                with suppress(RunEnded, ChangeRejected):
                    await getattr(handle, control)()
            looks = store.calls.count(Call("mailbox", "r"))
            while store.calls.count(Call("mailbox", "r")) == looks:
                await anyio.sleep(0.003)
            gates["one"].opened.set()
            await anyio.wait_all_tasks_blocked()
            gates["two"].opened.set()
            await DRIVEN[control](handle)
        tasks.cancel_scope.cancel()
    end = (await ending_of(service))["r"]
    # A cancelled run may have completed one of these before.
    done = set(service.world.done) - {"one", "two"}
    return end["status"], end["mailbox"], end["lease"], await asked_by(service, "r"), done


@EVERY
@pytest.mark.parametrize("control", DRIVEN)
async def test_the_process_of_a_controlled_run_is_killed_at_any_write(
    control: str, every: int
) -> None:
    whole = FaultyStore(MemoryStore(), IN_TURNS)
    expected = await controlled(control, whole)
    assert expected[3] == ["ann"] if control == "cancel" else ["ann", "ann"]
    points = [one for one in crash_points(whole) if one.operation == "append"]
    for point in visited(points, every):
        store = FaultyStore(MemoryStore(), [point, *IN_TURNS])
        assert await controlled(control, store) == expected, point


# Real deaths.


class Dying(ForwardingStore):
    """A store whose process kills itself just before or just after its first write."""

    def __init__(self, store: CheckpointStore, *, is_durable: bool) -> None:
        super().__init__(store)
        self._is_durable = is_durable

    async def append(self, lease: Lease, batch: Batch) -> None:
        await self._died_at(super().append(lease, batch))

    async def send(self, run_id: str, topic: str, *, key: str, body: bytes = b"") -> bool:
        return await self._died_at(super().send(run_id, topic, key=key, body=body))

    async def create(self, *arguments: Any, **options: Any) -> RunInfo | None:
        return await self._died_at(super().create(*arguments, **options))

    async def _died_at(self, write: Coroutine[Any, Any, Any]) -> Any:
        if self._is_durable:
            await write
        os.kill(os.getpid(), signal.SIGKILL)


DIED = """
import anyio, sys
from tests.service import test_controls_killed as tests

name, folder, is_durable = sys.argv[1:]

async def main():
    async with tests.sqlite_in(folder) as service:
        dying = tests.Dying(service.store, is_durable=is_durable == "True")
        await getattr(tests, name)(tests.Service(dying, service.world))

anyio.run(main)
"""


@asynccontextmanager
async def sqlite_in(folder: Path | str) -> AsyncIterator[Service]:
    async with SqliteStore(Path(folder) / "runs.db") as store:
        yield Service(store)


@in_turn(
    control=[(suspended, pause), (submitted, cancel), (failed, retry), (completed, fork)],
    is_durable=[False, True],
)
async def test_a_process_is_killed_while_it_controls_a_run_on_sqlite(
    tmp_path: Path, control: tuple[Any, Any], is_durable: bool
) -> None:
    prepare, ask = control
    whole = Service(MemoryStore())
    await prepare(whole)
    await ask(whole)
    after = await seen_in(whole)
    expected = await ended(whole)
    async with sqlite_in(tmp_path) as service:
        await prepare(service)
        before = await seen_in(service)
        killed = Program(["-c", DIED, ask.__name__, str(tmp_path), str(is_durable)])
        assert await anyio.to_thread.run_sync(killed.wait) == -signal.SIGKILL
        assert await seen_in(service) == (after if is_durable else before)
        try:
            await ask(service)
        except CheckpointError:
            assert is_durable
        assert is_durable or await seen_in(service) == after
        assert await ended(service) == expected
