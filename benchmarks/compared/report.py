"""The table of `compare.py`, from what it measured in each round. Nothing here measures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["FLOOR", "OURS", "Figures", "Row", "as_json", "as_markdown", "in_page"]

OURS = "effectflow"
FLOOR = "bare floor"

Figures: TypeAlias = Mapping[str, float]
"""What one system measured in one round."""
Rounds: TypeAlias = Mapping[str, Sequence[Figures]]
"""The figures of the systems that a measurement has."""


@dataclass(frozen=True)
class Row:
    """A line of the table: one number of a measurement."""

    measurement: str
    title: str
    unit: str
    figure: Callable[[Figures], float]
    more_is_better: bool = False
    over_floor: bool = False
    """Whether the number is given as a multiple of what the bare floor needed in the same round."""


def numbers(row: Row, rounds: Rounds) -> dict[str, list[float]]:
    """Return the number of each system in each round."""
    found = {name: [row.figure(one) for one in of] for name, of in rounds.items()}
    floor = found.pop(FLOOR, None)
    if not row.over_floor:
        return found
    assert floor is not None
    return {
        name: [one / least for one, least in zip(of, floor, strict=True)]
        for name, of in found.items()
    }


def times_better(row: Row, found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return how many times better ours is than each peer: the median over the rounds."""

    def ratio(ours: float, peer: float) -> float:
        return ours / peer if row.more_is_better else peer / ours

    return {
        name: statistics.median(map(ratio, found[OURS], of))
        for name, of in found.items()
        if not name.startswith(OURS)
    }


def shown(number: float) -> str:
    """Three digits that count."""
    if number >= 1000:
        return f"{number:,.0f}"
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def cell(of: Sequence[float]) -> str:
    middle = shown(statistics.median(of))
    return middle if len(of) == 1 else f"{middle} ({shown(min(of))} to {shown(max(of))})"


def against_best(row: Row, found: Mapping[str, Sequence[float]]) -> str:
    better = times_better(row, found) if OURS in found else {}
    if not better:
        return ""
    name, times = min(better.items(), key=lambda one: one[1])
    if times >= 1:
        return f"{shown(times)} times better than {name}"
    return f"**{shown(1 / times)} times worse than {name}**"


def as_markdown(
    rows: Sequence[Row],
    measured: Mapping[str, Rounds],
    absent: Mapping[str, Mapping[str, str]],
    facts: Sequence[str],
) -> str:
    """Return the facts, the table, and why a system is left out of a measurement."""
    found = {id(row): numbers(row, measured[row.measurement]) for row in rows}
    named = dict.fromkeys(name for of in found.values() for name in of)
    systems = sorted(named, key=lambda name: not name.startswith(OURS))
    reasons: list[str] = []

    def shown_cell(row: Row, name: str) -> str:
        if name in found[id(row)]:
            return cell(found[id(row)][name])
        reason = absent.get(row.measurement, {}).get(name)
        if reason is None:
            return "-"
        if reason not in reasons:
            reasons.append(reason)
        return f"- ({reasons.index(reason) + 1})"

    lines = [f"| | {' | '.join(systems)} | against the best peer |"]
    lines.append("|---" * (len(systems) + 2) + "|")
    for row in rows:
        cells = [shown_cell(row, name) for name in systems]
        against = against_best(row, found[id(row)])
        lines.append(f"| {row.title}, {row.unit} | {' | '.join(cells)} | {against} |")
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n".join([*(f"- {fact}" for fact in facts), "", *lines, "", *notes]).strip() + "\n"


BEGIN, END = "<!-- begin of the table -->\n", "<!-- end of the table -->\n"


def in_page(page: str, table: str) -> str:
    """Return a page with the table in its place, or the table alone if the page has no place for it."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}" if end else table


def as_json(
    rows: Sequence[Row],
    measured: Mapping[str, Rounds],
    absent: Mapping[str, Mapping[str, str]],
    facts: Sequence[str],
) -> dict[str, Any]:
    """Return the same as data, with the number of each round."""

    def of_row(row: Row) -> dict[str, Any]:
        found = numbers(row, measured[row.measurement])
        return {
            "measurement": row.measurement,
            "title": row.title,
            "unit": row.unit,
            "more_is_better": row.more_is_better,
            "systems": {
                name: {"median": statistics.median(of), "rounds": of} for name, of in found.items()
            },
            "times_better": times_better(row, found) if OURS in found else {},
            "absent": absent.get(row.measurement, {}),
        }

    return {"facts": [*facts], "rows": [of_row(row) for row in rows]}
