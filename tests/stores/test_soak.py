"""Workers killed at random moments, for a few seconds; `python -m tests.stores.soak` takes longer."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stores.faults.tale import STORES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("store", STORES)
def test_workers_killed_at_random_moments_lose_nothing(store: str) -> None:
    soaked = subprocess.run(
        [sys.executable, "-m", "tests.stores.soak", store, "--seconds", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    # What it said has the seed.
    assert soaked.returncode == 0, soaked.stdout + soaked.stderr
    [kills] = re.findall(r"(\d+) kills", soaked.stdout)
    assert int(kills) > 0
