"""The example of a state machine: in one go, and killed again and again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs import PIPE, Program, ran

EXAMPLE = Path(__file__).parents[2] / "examples" / "order_processing.py"

SHIPPED = """\
Placed(item='cap', amount=2)
reserve (attempt 1) -> Reserved(item='cap', amount=2, shelf='shelf 7')
charge (attempt 3) -> Paid(shelf='shelf 7', receipt='receipt for 2')
ship (attempt 1) -> Shipped(receipt='receipt for 2', parcel='parcel from shelf 7')
"""


def command(folder: Path, *arguments: str, seconds: float) -> list[str]:
    options = ["--folder", str(folder), "--seconds", str(seconds)]
    return [str(EXAMPLE), "17", *arguments, *options]


def processed(folder: Path, *arguments: str) -> str:
    return ran(command(folder, *arguments, seconds=0), check=True).stdout


CANCELLED = """\
Placed(item='hat', amount=1)
reserve (attempt 1, aborted: no hat left) -> Cancelled(reason='out of stock')
"""

REFUSED = """\
Placed(item='cap', amount=101)
refuse (attempt 1) -> Cancelled(reason='too many')
"""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(["--amount", "2"], SHIPPED), (["--item", "hat"], CANCELLED), (["--amount", "101"], REFUSED)],
    ids=["shipped", "out of stock", "too many"],
)
def test_an_order_is_processed(tmp_path: Path, arguments: list[str], expected: str) -> None:
    assert processed(tmp_path, *arguments) == expected
    if expected == SHIPPED:
        # Started again, it prints the same, and runs nothing.
        assert processed(tmp_path, *arguments) == expected


def requests(folder: Path, service: str) -> int:
    """How many requests a service has seen."""
    path = folder / f"{service}.json"
    return len(json.loads(path.read_text())) if path.exists() else 0


def test_killed_in_each_state_it_ends_in_the_same_history(tmp_path: Path) -> None:
    moments: list[Callable[[], bool]] = [
        lambda: requests(tmp_path, "warehouse") == 1,
        lambda: requests(tmp_path, "bank") == 1,
        lambda: requests(tmp_path, "bank") == 3,
        lambda: requests(tmp_path, "carrier") == 1,
    ]
    for has_come in moments:
        # The services are so slow that each kill comes before the answer does.
        slow = command(tmp_path, "--amount", "2", seconds=0.5)
        process = Program(slow, stdout=PIPE)
        wait_until(has_come)
        process.kill()
        output, _ = process.communicate()
        assert (process.returncode, output) == (-9, "")

    assert processed(tmp_path, "--amount", "2") == SHIPPED
    # What was cut off was asked for again with the same key, and what was done never again.
    seen = [requests(tmp_path, service) for service in ("warehouse", "bank", "carrier")]
    assert seen == [1, 3, 1]


def wait_until(has_come: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not has_come():
        assert time.monotonic() < deadline
        time.sleep(0.005)
