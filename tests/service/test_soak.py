"""Workers of a service killed at random moments; `python -m tests.service.soak` takes longer."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("store", "runs"),
    [
        ("postgres", 12),
        pytest.param("postgres", 1000, marks=pytest.mark.exhaustive),
        pytest.param("sqlite", 1000, marks=pytest.mark.exhaustive),
    ],
)
def test_every_run_ends_as_planned_although_workers_and_servers_are_killed(
    store: str, runs: int
) -> None:
    # The limit is for a machine that does other work as well.
    soaked = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.service.soak",
            store,
            "--runs",
            f"{runs}",
            "--seconds",
            "240",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )

    # Its output contains the seed.
    assert soaked.returncode == 0, soaked.stdout + soaked.stderr
    [kills, stops] = re.findall(r"(\d+) (?:kills|stops)", soaked.stdout)
    assert int(kills) + int(stops) > 0
