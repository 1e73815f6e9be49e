"""The example of a graph, as a process that is killed in its loop and started again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "document_review.py"

LETTER = "".join(
    f"Paragraph {number} has the the same fault as all of of the others.{' ' * (number % 3)}\n"
    f"{'It is followed by a sentence that goes on and on. ' * (number % 4)}\n"
    for number in range(12)
)

MENDED = "Paragraph 11 has the same fault as all of the others."


def command(folder: Path, *options: str) -> list[str]:
    return [sys.executable, str(EXAMPLE), str(folder / "letter.txt"), *options]


def run_to_the_end(folder: Path) -> list[str]:
    """What it prints. Its documents are in `folder / "reviewed"`."""
    ran = subprocess.run(
        command(folder), cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def kill_at(folder: Path, line: str) -> list[str]:
    """Start it, and kill it as soon as it has printed this line. Gives what it printed."""
    process = subprocess.Popen(
        command(folder, "--pause", "0.2"), cwd=folder, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    printed: list[str] = []
    for text in process.stdout:
        printed.append(text.rstrip())
        if printed[-1] == line:
            process.kill()
            break
    process.stdout.close()
    assert process.wait(timeout=60) == -9, f"it ended without saying {line!r}"
    return printed


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders with the same letter."""
    both = (tmp_path / "whole", tmp_path / "killed")
    for folder in both:
        folder.mkdir()
        (folder / "letter.txt").write_text(LETTER)
    return both


def test_a_paper_is_reviewed_until_there_are_no_objections(folders: tuple[Path, Path]) -> None:
    folder, _ = folders

    printed = run_to_the_end(folder)

    text = (folder / "reviewed" / "letter.txt").read_text()
    assert MENDED in text
    assert "the the" not in text
    assert all(len(line) <= 80 and line == line.rstrip() for line in text.splitlines())
    assert printed[:3] == ["read, visit 1", "review, visit 1", "words, visit 1"]
    assert printed[-1].startswith("letter.txt: no objections after ")
    assert "revise, visit 9" in printed


# Other examples are killed by default: orders, the shop and the demo.
@pytest.mark.exhaustive
def test_a_run_killed_repeatedly_in_its_loop_writes_the_same_result(
    folders: tuple[Path, Path],
) -> None:
    whole, killed = folders
    expected = run_to_the_end(whole)

    lives = [kill_at(killed, f"revise, visit {visit}") for visit in (1, 2, 5)]
    lives.append(run_to_the_end(killed))

    # Each life begins with the node that the one before it was killed in, and with none before that.
    assert [life[0] for life in lives] == [
        "read, visit 1",
        "revise, visit 1",
        "revise, visit 2",
        "revise, visit 5",
    ]
    assert [line for life in lives[:-1] for line in life[:-1]] + lives[-1] == expected
    for name in ("letter.txt", "letter.txt.mmd"):
        assert (killed / "reviewed" / name).read_bytes() == (whole / "reviewed" / name).read_bytes()
