"""The dead letters of a run: the items of its jobs that were set aside, and how they are tried again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from effectflow.checkpoint.entries import BeforeStep, Entry, Failed, Finished, Resumed, SetAside
from effectflow.checkpoint.errors import CorruptCheckpoint, OutcomeUnknown
from effectflow.checkpoint.order import (
    Order,
    RecordedFailure,
    Spans,
    in_ranges,
    ordered_path_of,
)
from effectflow.checkpoint.values import Tree
from effectflow.checkpoint.values.exceptions import name_of_error
from effectflow.effects import TimedOut
from effectflow.effects.paths import StepPath, flow_of, is_within

DEAD_LETTER = "dead_letter"
"""The name with which a job sets an item aside."""


@dataclass(frozen=True, slots=True)
class RecordedLetter:
    """An item that was set aside because its last attempt failed.

    Attributes:
        number: the entry that records it.
        path: the path of that entry.
        item: the item in its saved form.
        failed: how many items of the job had failed by then.
        failures: all failed attempts of the item, oldest first.
    """

    number: int
    path: str
    item: Tree
    failed: int
    failures: tuple[RecordedFailure, ...]

    @property
    def flow(self) -> StepPath:
        """The branch of the item, such as `map[emma]`."""
        return StepPath(flow_of(self.path))

    @property
    def key(self) -> str:
        """The key of the item."""
        return self.flow.key or ""


def dead_letters_of(order: Order) -> list[RecordedLetter]:
    """Return the dead letters of a run that were neither retried nor dropped, in their order."""
    return [
        letter_of(order, path) for path, aside in order.set_aside.items() if not aside.is_dropped
    ]


def letter_of(order: Order, path: str) -> RecordedLetter:
    """Return what is recorded of an item that was set aside at this path.

    Raises CorruptCheckpoint if that is no item of a job.
    """
    aside = order.set_aside[path]
    match aside.value:
        case {"item": item, "failed": int(failed)}:
            failures = failures_in(order, flow_of(path))
            return RecordedLetter(aside.number, path, item, failed, failures)
        case _:
            what = f"entry {aside.number}, which sets {path!r} aside,"
            raise CorruptCheckpoint("", "it has no item of a job", what=what, is_damaged=False)


def failures_in(order: Order, flow: str) -> tuple[RecordedFailure, ...]:
    """Return the failed attempts of all steps of the branch of an item, oldest first."""
    found = [one for path, one in order.attempts.items() if flow_of(path) == flow]
    return tuple(failure for attempts in found for failure in attempts.failures)


@dataclass(frozen=True, slots=True)
class Reopening:
    """Retries or drops dead letters of a run, whose jobs then continue.

    Attributes:
        keys: the keys of their items; None for all.
        drops: whether they are dropped.
        force: whether at-most-once steps may run again.
    """

    keys: frozenset[str] | None
    drops: bool
    force: bool

    def reopened(
        self, entries: tuple[Entry, ...], order: Order, resumed: Resumed
    ) -> Resumed | None:
        """Return the entry with which the run continues; None if there are no such dead letters.

        An unfinished reopening continues: items that failed again in it are not retried once more.
        """
        all_letters = [one for one in entries if isinstance(one, SetAside)]
        known = {StepPath(flow_of(one.path)).key or "" for one in all_letters}
        unknown = sorted((self.keys or known) - known)
        if unknown:
            raise ValueError(
                f"the run has no dead letters with the keys {', '.join(map(repr, unknown))}"
            )
        since = _unfinished_reopening(entries)
        chosen = [
            letter
            for letter in dead_letters_of(order)
            if (self.keys is None or letter.key in self.keys)
            and (since is None or letter.number < since)
        ]
        if not chosen:
            return None
        void, abandoned = _what_is_left_out(entries, chosen, drops=self.drops)
        if not self.force:
            _check_repeats(entries, void, resumed)
        dropped = [letter.number for letter in chosen] if self.drops else []
        return replace(
            resumed,
            void=(*resumed.void, *in_ranges(void)),
            abandoned=in_ranges(abandoned),
            dropped=in_ranges(dropped),
        )


def _unfinished_reopening(entries: Iterable[Entry]) -> int | None:
    """Return the entry of the last reopening, if the run has not ended since."""
    found: int | None = None
    asides: list[int] = []
    for number, entry in enumerate(entries, 1):
        if isinstance(entry, SetAside):
            asides.append(number)
        elif isinstance(entry, Resumed) and asides:
            chosen = Spans((*entry.void, *entry.dropped))
            if any(one in chosen for one in asides):
                found = number
        elif isinstance(entry, Finished):
            found = None
    return found


def _what_is_left_out(
    entries: Sequence[Entry], chosen: Sequence[RecordedLetter], *, drops: bool
) -> tuple[set[int], set[int]]:
    """Return the entries that are void, and those of the jobs whose results stand if nothing changed."""
    void: set[int] = set()
    abandoned: set[int] = set()
    for letter in chosen:
        if not drops:
            void |= _of_the_item(entries, letter)
    known = Spans(span for one in entries if isinstance(one, Resumed) for span in one.void)
    for job in dict.fromkeys(letter.flow.operator for letter in chosen):
        _leave_job_out(entries, job, known, void, abandoned)
    return void, abandoned - void


def _of_the_item(entries: Sequence[Entry], letter: RecordedLetter) -> set[int]:
    """Return the entries with which an item failed last and was set aside."""
    flow = str(letter.flow)
    ends = [
        number
        for number, one in enumerate(entries, 1)
        if number < letter.number and flow_of(ordered_path_of(one)) == flow
    ]
    return {letter.number, ends[-1]} if ends else {letter.number}


def _leave_job_out(
    entries: Sequence[Entry], job: StepPath, known: Spans, void: set[int], abandoned: set[int]
) -> None:
    """Leave out what followed a job: its groups, and all that may depend on its result.

    `known` are the entries that were void before.
    """
    own = _other_places_of(entries, job, known)
    place = str(job)
    while True:
        around = flow_of(place)
        since = _first_of(entries, place, known)
        for number, entry in enumerate(entries, 1):
            path = ordered_path_of(entry)
            if number < since or not path or not _is_in(path, around):
                continue
            if path == place or is_within(path, place):
                continue
            if place == job and _place_in(path, around) in own:
                abandoned.add(number)
            else:
                void.add(number)
        if not around:
            return
        # A branch belongs to its operator, and the body of a step to the step, which has not ended then.
        place = str(StepPath(around).operator)
        if place == around:
            void |= {
                number
                for number, entry in enumerate(entries, 1)
                if ordered_path_of(entry) == place and not isinstance(entry, BeforeStep)
            }


def _other_places_of(entries: Sequence[Entry], job: StepPath, known: Spans) -> set[str]:
    """Return where a job reduces its groups, and counts its items: the next places in its flow.

    Their names do not tell, because steps of a user may have the same ones. Nothing else of the flow
    begins before the job has ended.
    """
    flow, found = job.flow, dict[str, str]()
    since = _first_of(entries, job, known)
    for number, entry in enumerate(entries[since - 1 :], since):
        path = ordered_path_of(entry)
        if number in known or not path or not _is_in(path, flow):
            continue
        place = _place_in(path, flow)
        name = StepPath(place).name
        if place == job or place == found.get(name):
            continue
        if name not in ("reduce", "mapped") or name in found:
            break
        found[name] = place
    return set(found.values())


def _place_in(path: str, flow: str) -> str:
    """Return the step or operator of a flow that a path is at or within."""
    while (around := flow_of(path)) != flow:
        path = around
    return StepPath(path).operator


def _first_of(entries: Sequence[Entry], place: str, known: Spans) -> int:
    """Return the first entry at or within a place that was not void before."""
    for number, entry in enumerate(entries, 1):
        path = ordered_path_of(entry)
        if (path == place or is_within(path, place)) and number not in known:
            return number
    return len(entries) + 1


def _is_in(path: str, flow: str) -> bool:
    return not flow or path.startswith(f"{flow}/")


def _check_repeats(entries: Sequence[Entry], void: set[int], resumed: Resumed) -> None:
    """Raise OutcomeUnknown if a step that may have happened, and must not happen twice, runs again."""
    started: Any = entries[0]
    for number in sorted(void):
        entry = entries[number - 1]
        path = ordered_path_of(entry)
        begun = [one for one in entries if isinstance(one, BeforeStep) and one.step == path]
        if begun and begun[-1].at_most_once and _may_have_happened(entry):
            raise OutcomeUnknown(started.run_id, path, is_repeated=True)


def _may_have_happened(entry: Entry) -> bool:
    """Return whether the step that an entry is about may have acted."""
    return not isinstance(entry, Failed) or entry.error.type == name_of_error(TimedOut)
