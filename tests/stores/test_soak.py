"""Workers killed at random moments, for a second; `python -m tests.stores.soak` takes longer."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stores.faults.tale import STORES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("store", "seconds"),
    [
        ("file", 1),
        ("sqlite full", 1),
        *(pytest.param(store, 20, marks=pytest.mark.exhaustive) for store in STORES),
    ],
)
def test_workers_killed_at_random_moments_lose_nothing(store: str, seconds: int) -> None:
    soaked = subprocess.run(
        [sys.executable, "-m", "tests.stores.soak", store, "--seconds", str(seconds)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    # Its output contains the seed.
    assert soaked.returncode == 0, soaked.stdout + soaked.stderr
    [kills] = re.findall(r"(\d+) kills", soaked.stdout)
    assert int(kills) > 0
