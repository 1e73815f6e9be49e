"""A document is reviewed and corrected until no reviewer objects: a graph with a loop.

    python examples/document_review.py README.md --pause 1

Press Ctrl-C or `kill -9` it, and run the same command again. It continues where it stopped, and writes
the same document as an uninterrupted run, with a diagram of the path through the graph.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Never

import anyio

from effectflow import Checkpoints, Do, Effect, SqliteStore, ask, do, effect, pure, sleep
from effectflow.checkpoint import CheckpointEvent, read_checkpoint
from effectflow.graphs import NodeStarted, StateGraph

WIDTH = 80
ROUNDS = 50
REVISED_IN_A_ROUND = 3

REPEATED_WORD = re.compile(r"\b(\w+) \1\b")


@dataclass(frozen=True)
class Remark:
    """A reviewer's objection to a line, counted from 0."""

    line: int
    fault: str


@dataclass(frozen=True)
class Draft:
    """The state of the graph: a document and the objections to it."""

    source: str
    lines: tuple[str, ...] = ()
    remarks: tuple[Remark, ...] = ()
    rounds: int = 0


@dataclass(frozen=True)
class Desk:
    """The environment: the folder for the result, and how long the editor takes."""

    checkpoints: Checkpoints
    folder: Path
    seconds_for_a_round: float = 0.0


@effect(errors=(OSError, UnicodeDecodeError))
def read(_: Desk, draft: Draft) -> Draft:
    text = Path(draft.source).read_text(encoding="utf-8")
    return replace(draft, lines=tuple(text.splitlines()))


def review_words(draft: Draft) -> Effect[object, Never, tuple[Remark, ...]]:
    return pure(
        tuple(
            Remark(number, "repeated word")
            for number, line in enumerate(draft.lines)
            if REPEATED_WORD.search(line)
        )
    )


def review_layout(draft: Draft) -> Effect[object, Never, tuple[Remark, ...]]:
    remarks: list[Remark] = []
    for number, line in enumerate(draft.lines):
        if line != line.rstrip():
            remarks.append(Remark(number, "blanks at the end"))
        elif len(line) > WIDTH and " " in line.strip()[:WIDTH]:
            remarks.append(Remark(number, "too long"))
    return pure(tuple(remarks))


def gather(draft: Draft, found: Mapping[str, tuple[Remark, ...]]) -> Draft:
    remarks = tuple(remark for remarks in found.values() for remark in remarks)
    return replace(draft, remarks=remarks, rounds=draft.rounds + 1)


class Verdict(Enum):
    FINE = "no objections"
    ENOUGH = "too many rounds"
    AGAIN = "to be corrected"


def verdict(draft: Draft) -> Verdict:
    if not draft.remarks:
        return Verdict.FINE
    return Verdict.ENOUGH if draft.rounds >= ROUNDS else Verdict.AGAIN


@do
def revise(draft: Draft) -> Do[Desk, Never, Draft]:
    """Correct a few faults and leave the rest for the next round."""
    desk = yield from ask(Desk)
    yield from sleep(desk.seconds_for_a_round)
    lines = list(draft.lines)
    chosen = draft.remarks[:REVISED_IN_A_ROUND]
    # From the end, because a wrapped line moves the lines after it. One fault per line at a time.
    for number in sorted({remark.line for remark in chosen}, reverse=True):
        fault = next(remark.fault for remark in chosen if remark.line == number)
        lines[number : number + 1] = revised(lines[number], fault)
    return replace(draft, lines=tuple(lines))


def revised(line: str, fault: str) -> list[str]:
    match fault:
        case "repeated word":
            return [REPEATED_WORD.sub(r"\1", line)]
        case "too long":
            return textwrap.wrap(line, WIDTH, break_long_words=False, break_on_hyphens=False)
        case _:
            return [line.rstrip()]


@effect(errors=OSError)
def publish(desk: Desk, draft: Draft) -> Draft:
    desk.folder.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}\n" for line in draft.lines)
    (desk.folder / Path(draft.source).name).write_text(text, encoding="utf-8")
    return draft


review = (
    StateGraph[Desk, OSError | UnicodeDecodeError, Draft]("document_review")
    .node("read", read)
    .parallel("review", {"words": review_words, "layout": review_layout}, gather)
    .node("revise", revise)
    .node("publish", publish)
    .edge("read", "review")
    .route(
        "review",
        verdict,
        {Verdict.FINE: "publish", Verdict.ENOUGH: "publish", Verdict.AGAIN: "revise"},
    )
    .edge("revise", "review")
    .entry("read")
    .exit("publish")
    .build()
)


class ShowNodes:
    """Print each node when it begins."""

    def notify(self, event: CheckpointEvent) -> None:
        match event:
            case NodeStarted(workflow=review.name, node=node, visit=visit):
                print(f"{node}, visit {visit}", flush=True)
            case _:
                pass


async def main() -> None:
    parser = argparse.ArgumentParser(description="Review and correct a document durably.")
    parser.add_argument("document", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("reviewed"), help="where it goes")
    parser.add_argument("--store", type=Path, default=Path("reviews.db"), help="the SQLite file")
    parser.add_argument(
        "--pause", type=float, default=0.0, help="seconds for each round of corrections"
    )
    arguments = parser.parse_args()

    document: Path = arguments.document.resolve()
    async with SqliteStore(arguments.store) as store:
        checkpoints = Checkpoints(store, observers=[ShowNodes()])
        desk = Desk(checkpoints, arguments.folder, arguments.pause)
        # If a run with this id exists, it continues.
        run_id = f"review-{document.name}"
        draft = await review.start(Draft(str(document)), run_id=run_id).run_or_raise(desk)
        drawing = review.to_mermaid(await read_checkpoint(store, run_id))
    (arguments.folder / f"{document.name}.mmd").write_text(drawing, encoding="utf-8")
    print(f"{document.name}: {verdict(draft).value} after {draft.rounds} rounds")


if __name__ == "__main__":
    anyio.run(main)
