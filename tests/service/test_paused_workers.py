"""A worker that sleeps past the end of its leases does no harm when it wakes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from returns.result import Success

from effectflow import Client
from effectflow.checkpoint import read_entries
from tests.service.paused_worker import STEPS, checkpoints, working

pytestmark = pytest.mark.anyio


@contextmanager
def worker_process(url: str, backend: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.service.paused_worker", url, backend, str(log)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_of(log: Path, process: subprocess.Popen[bytes]) -> list[str]:
    lines = log.read_text().splitlines() if log.exists() else []
    own = f"{process.pid} "
    return [line.removeprefix(own) for line in lines if line.startswith(own)]


@pytest.mark.parametrize(
    ("kind", "anyio_backend"),
    [
        ("sqlite", "asyncio"),
        pytest.param("postgres", "trio", marks=pytest.mark.exhaustive),
        pytest.param("sqlite", "trio", marks=pytest.mark.exhaustive),
        pytest.param("postgres", "asyncio", marks=pytest.mark.exhaustive),
    ],
)
async def test_a_worker_that_was_paused_past_its_lease_writes_nothing_more(
    kind: str, anyio_backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    if kind == "postgres":
        url = request.getfixturevalue("postgres")
    log, run_id = tmp_path / "log", f"run on {anyio_backend}"
    with worker_process(url, anyio_backend, log) as paused:
        async with Client(checkpoints(url)) as client:
            handle = await client.submit(working, "first", run_id=run_id)
            with anyio.fail_after(30):
                while "begins 1" not in lines_of(log, paused):
                    await anyio.sleep(0.01)
            paused.send_signal(signal.SIGSTOP)
            with worker_process(url, anyio_backend, log) as other:
                assert await handle.result(timeout=30) == Success(sum(range(STEPS)))
                # What is durable is not executed again, and the step in progress is.
                assert lines_of(log, other)[0] == "begins 1"
            store = client.checkpoints.store
            entries = await read_entries(store, run_id)
            paused.send_signal(signal.SIGCONT)
            # The worker is alive: it notices that it has lost the run, and drives another one.
            again = await client.submit(working, "second", run_id=f"second {run_id}")
            assert await again.result(timeout=30) == Success(sum(range(STEPS)))
            assert await read_entries(store, run_id) == entries
    lines = lines_of(log, paused)
    own, second = lines[: -2 * STEPS], lines[-2 * STEPS :]
    # Of the run that it has lost, it ends the step in progress at most, and begins no further one.
    assert own in (["begins 0", "ends 0", "begins 1"], ["begins 0", "ends 0", "begins 1", "ends 1"])
    assert second[0] == "begins 0"
