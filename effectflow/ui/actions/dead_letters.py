"""Retry or drop the items of jobs that were set aside."""

from __future__ import annotations

from effectflow.checkpoint.values import bounded
from effectflow.observe.explanation import Explanation
from effectflow.runs.control import reopen_run
from effectflow.runs.reopening import RecordedLetter, Reopening
from effectflow.ui.actions.action import (
    Action,
    Done,
    Fact,
    Offer,
    Prepared,
    Target,
    intact,
    told,
)
from effectflow.ui.forms import Form, Mistyped, described, form_of

_SHOWN = 200
"""The characters of an item and of an error that are shown."""


def _why_not(explanation: Explanation) -> str:
    if reason := intact(explanation):
        return reason
    if not explanation.dead_letters:
        return "No item of its jobs was set aside."
    if explanation.is_held:
        return f"A process drives the run, and must end first. {explanation.reason}"
    return ""


async def _prepare(target: Target) -> Prepared:
    letters = target.recorded.dead_letters
    texts = [_text_of(one) for one in letters]
    facts = (
        Fact(f"Set aside: {len(letters)}", tuple(texts), is_code=True),
        told(
            "What happens",
            "Retried items are mapped again; dropped ones no longer count. What followed from the result "
            "of the job runs again, and nothing else. The next worker does it.",
        ),
    )
    return Prepared(facts, (_offer(target, "retry"), _offer(target, "drop")))


def _text_of(letter: RecordedLetter) -> str:
    text = f"{letter.key}: {bounded(letter.item, _SHOWN)}"
    if letter.failures:
        error = letter.failures[-1].error
        text += f" failed with {error.type}: {error.message[:_SHOWN]}"
    return text


def _offer(target: Target, choice: str) -> Offer:
    hint = "one in each line; all of them if it is empty"
    field = described(list[str], name="keys", label=f"Keys of the items to {choice}", hint=hint)
    form = form_of(field, options=target.value_options, choice=choice)
    return Offer(
        form,
        f"{choice.capitalize()} the items",
        title=choice.capitalize(),
        is_final=choice == "drop",
        seen=target.seen,
    )


async def _act(target: Target, form: Form) -> Done:
    keys = form.values(target.value_options)["keys"]
    drops = form.choice == "drop"
    reopening = Reopening(frozenset(keys) if keys else None, drops, force=False)
    try:
        await reopen_run(
            target.checkpoints, target.run_id, reopening, by=target.by, clock=target.site.clock
        )
    except ValueError as error:
        raise Mistyped({"keys": str(error)}) from None
    return Done("drop" if drops else "retry-items", target.run_id)


DEAD_LETTERS = Action("dead-letters", "Dead letters", _why_not, _prepare, _act)
