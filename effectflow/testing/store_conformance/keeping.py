"""What is kept of a run, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

from effectflow.checkpoint import (
    Checkpoints,
    CheckpointStore,
    KeepsHistory,
    RunNotFound,
    RunStatus,
    step,
)
from effectflow.effects import Do, Effect, ask, fail, pure, traverse
from effectflow.testing.store_conformance.check import (
    bodies_of,
    check,
    claimed,
    fails,
    summary_of,
)
from effectflow.workflows import workflow


@dataclass(frozen=True)
class _App:
    checkpoints: Checkpoints
    is_broken: bool = False


@step
def _deliver(item: str) -> Effect[_App, str, str]:
    def perform(app: _App) -> Effect[object, str, str]:
        return fail("broken down") if app.is_broken else pure(item)

    return ask(_App).and_then(perform)


@workflow
def _delivery(items: list[str]) -> Do[_App, str, list[str]]:
    return (yield from traverse(items, _deliver))


@check
async def a_complete_run_that_is_not_to_be_preserved_is_gone(store: CheckpointStore) -> None:
    """One that failed stays, and can be resumed. What is gone can be started again."""
    checkpoints = Checkpoints(store, preserve=False)
    for _ in range(2):
        await _delivery.start(["a", "b"], run_id="r").run(_App(checkpoints, is_broken=True))
        info = await store.info("r")
        assert info is not None
        assert (info.summary.status, info.lease) == (RunStatus.FAILED, None)

        assert await _delivery.resume("r").run_or_raise(_App(checkpoints)) == ["a", "b"]
        assert await store.info("r") is None
        assert await store.read("r") == []
        assert await store.find() == []
        with fails(RunNotFound):
            await store.delete("r")


@check
async def a_history_limit_takes_nothing_from_the_run(store: CheckpointStore) -> None:
    """Whatever it is, and whenever it is said; and it is for one run alone."""
    if not isinstance(store, KeepsHistory):
        return
    expected: dict[str, list[bytes]] = {"r0": [], "r1": [], "other": []}
    for limits in ((0, 1), (10, 0), (1, 2)):
        for run_id, limit in zip(("r0", "r1"), limits, strict=True):
            store.keep_history(run_id, limit)
        for run_id, bodies in expected.items():
            lease = await claimed(store, run_id)
            for number in range(4):
                await store.append(lease, [b"%d" % number], after=len(bodies), summary=summary_of())
                bodies.append(b"%d" % number)
            await store.release(lease)

    for run_id, bodies in expected.items():
        assert await bodies_of(store, run_id) == bodies
    await store.delete("r0")
    assert {info.run_id for info in await store.find()} == {"r1", "other"}
