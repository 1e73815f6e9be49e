"""The files of tests/typing are accepted by pyright and mypy, and refused where they say so.

Those files mark every line that must be refused with the rule that refuses it. Both checkers report
a mark that nothing needed, so a line that is wrongly accepted fails here too.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "checker",
    [
        ["pyright", "--pythonpath", sys.executable, "--project", "tests/typing"],
        ["mypy", "tests/typing"],
    ],
    ids=["pyright", "mypy"],
)
def test_types_are_inferred_and_refused_as_the_cases_say(checker: list[str]) -> None:
    check = subprocess.run(
        [sys.executable, "-m", *checker], cwd=ROOT, capture_output=True, text=True, check=False
    )

    if check.returncode != 0:
        pytest.fail(check.stdout + check.stderr, pytrace=False)
