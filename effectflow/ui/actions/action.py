"""What every action is made of."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeAlias
from urllib.parse import urlencode

from anyio import get_cancelled_exc_class

from effectflow.checkpoint import RunStatus
from effectflow.checkpoint.checkpoint import Checkpoint
from effectflow.checkpoint.checkpoints import Checkpoints
from effectflow.checkpoint.entries import Entry
from effectflow.checkpoint.errors import CheckpointError
from effectflow.checkpoint.values import ValueOptions
from effectflow.effects.scope import Scope
from effectflow.observe.explanation import Explanation, explain
from effectflow.observe.recorded_run import RecordedRun
from effectflow.runs.stored_run import Place
from effectflow.service.environment import AnyWorkflow, BadEnvironment
from effectflow.ui.forms import Form, Mistyped, recorded_input
from effectflow.ui.site import Refused, Site

logger = logging.getLogger(__name__)

MOST_SHOWN = 20
"""The steps and other things that a fact lists."""


class CodeRaises(Refused):
    """The code of a workflow raises while it is replayed, perhaps what would end its process."""


_NOT_OF_CODE = (CheckpointError, Refused, Mistyped, KeyboardInterrupt)
"""What a replay raises for other reasons."""


@dataclass(frozen=True, slots=True)
class Target:
    """The run that an action is about, and what of it.

    Attributes:
        site: the pages.
        recorded: the run as it was read.
        explanation: why the run is where it is.
        step: the path of a step or wait; "" for none.
        at: the number of an entry, or the path of a step; "" for none.
        options: what else the address of the page says.
        key: what distinguishes the form that was submitted from others; "" for none.
    """

    site: Site
    recorded: RecordedRun
    explanation: Explanation
    step: str = ""
    at: str = ""
    options: tuple[tuple[str, str], ...] = ()
    key: str = ""

    @property
    def run_id(self) -> str:
        return self.explanation.run_id

    def wanted(self, name: str) -> str:
        """Return what the address of the page says of this name; "" for nothing."""
        return dict(self.options).get(name, "")

    @property
    def seen(self) -> str:
        """Where a run is that no process drives. It changes once somebody has moved the run."""
        return f"{self.explanation.status} {self.explanation.since}"

    @property
    def checkpoints(self) -> Checkpoints:
        return self.site.client.checkpoints

    @property
    def value_options(self) -> ValueOptions:
        return self.checkpoints.value_options

    @property
    def by(self) -> str:
        """Who acts."""
        return self.site.client.by

    @property
    def workflow(self) -> AnyWorkflow:
        """The workflow of the run. Raise Refused if the App has none of its name."""
        app = self.site.app
        found = None if app is None else app.recorded.get(self.explanation.workflow)
        if found is None:
            raise Refused(
                f"This needs the code of workflow {self.explanation.workflow!r}, which is not among the "
                "workflows of the App that these pages were given: add it there.",
                409,
            )
        return found

    @property
    def has_code(self) -> bool:
        """Whether the App has the workflow of the run."""
        app = self.site.app
        return app is not None and self.explanation.workflow in app.recorded

    @asynccontextmanager
    async def place(self) -> AsyncGenerator[Place]:
        """Open the environment of the App, to replay the run in it.

        Raise Refused if it cannot be made, and CodeRaises for what the code of the workflow raises. What
        was done in it stays done if it cannot be closed, so that is only logged.
        """
        app, blueprint = self.site.changeable(), self.workflow.blueprint
        is_done, raised = False, None
        try:
            async with app.opened_environment(self.checkpoints) as env:
                try:
                    yield Place.of(blueprint, self.checkpoints, env, Scope(self.site.clock))
                except _NOT_OF_CODE:
                    raise
                except BaseException as defect:
                    if isinstance(defect, get_cancelled_exc_class()):
                        raise
                    logger.warning("the code of a workflow raises in a replay", exc_info=True)
                    name = type(defect).__name__
                    raised = CodeRaises(f"The code of the workflow raises {name}: {defect}", 409)
                is_done = True
        except BadEnvironment as error:
            raise Refused(
                f"The process of these pages lacks what the code needs: {error}", 503
            ) from error
        except (Exception, SystemExit) as error:
            if is_done:
                logger.exception("the environment of the App could not be closed")
            elif isinstance(error, SystemExit):
                raise Refused(f"The environment of the App raises {error!r}.", 503) from error
            else:
                raise
        if raised is not None:
            raise raised

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The journal of the run."""
        return self.recorded.entries

    @property
    def checkpoint(self) -> Checkpoint:
        """The state after these entries."""
        return self.recorded.checkpoint

    @property
    def input(self) -> Any:
        """The input of the run, as its workflow takes it now. Raise CorruptCheckpoint."""
        return recorded_input(self.workflow, self.recorded.journal.started, self.checkpoints)


async def read_target(site: Site, run_id: str, **about: Any) -> Target:
    """Return the run that an action is about. Raise RunNotFound."""
    recorded = await site.recent_runs.read(run_id)
    return Target(site, recorded, explain(recorded, site.now), **about)


@dataclass(frozen=True, slots=True)
class Link:
    """A link to another action on the run, or to another page.

    Attributes:
        action: the name of the action, or the path of a page.
        text: what the link says.
        query: what else its address says.
    """

    action: str
    text: str
    query: tuple[tuple[str, str], ...] = ()

    def address(self, run_id: str) -> str:
        """Return its address, below that of the pages."""
        if self.action.startswith("/"):
            return f"{self.action}?{urlencode(self.query)}"
        return f"/run/act/{self.action}?{urlencode([('id', run_id), *self.query])}"


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that people should know before they act.

    Attributes:
        label: what it is about.
        texts: what there is, such as the paths of steps; a page shows some of them.
        is_code: whether the texts are names and values, and no sentences.
        is_problem: whether it warns.
    """

    label: str
    texts: tuple[str, ...]
    is_code: bool = False
    is_problem: bool = False

    @property
    def shown(self) -> tuple[str, ...]:
        return self.texts[:MOST_SHOWN]

    @property
    def more(self) -> int:
        """How many are not shown."""
        return max(0, len(self.texts) - MOST_SHOWN)


def told(label: str, *sentences: str) -> Fact:
    """Return a fact in sentences."""
    return Fact(label, sentences)


def warned(label: str, *sentences: str) -> Fact:
    """Return a warning in sentences."""
    return Fact(label, sentences, is_problem=True)


def listed(label: str, texts: Sequence[str]) -> tuple[Fact, ...]:
    """Return the fact with these names; none without any."""
    return (Fact(label, tuple(texts), is_code=True),) if texts else ()


@dataclass(frozen=True, slots=True)
class Offer:
    """A form that acts.

    Attributes:
        form: what it asks for.
        button: what the button says.
        title: what distinguishes it from the other forms of its page.
        is_final: whether it cannot be taken back.
        hidden: what is submitted with it, such as a key that makes a second submission do nothing.
        seen: what must still be as it was when a person saw the form; "" for nothing.
    """

    form: Form
    button: str
    title: str = ""
    is_final: bool = False
    hidden: tuple[tuple[str, str], ...] = ()
    seen: str = ""

    @property
    def mark(self) -> str:
        """What is submitted of `seen`."""
        return sha256(self.seen.encode(errors="replace")).hexdigest()[:16] if self.seen else ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a page shows before an action.

    Attributes:
        facts: what will happen.
        offers: the forms that act.
        links: where else to go.
        code: a text to copy; "" without one.
    """

    facts: tuple[Fact, ...] = ()
    offers: tuple[Offer, ...] = ()
    links: tuple[Link, ...] = ()
    code: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """What an action has done.

    Attributes:
        notice: the name of the notice to show.
        run_id: the run to show; "" for all runs.
    """

    notice: str
    run_id: str


Act: TypeAlias = Callable[[Target, Form], Awaitable[Done]]


@dataclass(frozen=True, slots=True)
class Action:
    """Something that people do to a run.

    Attributes:
        name: its name in addresses.
        label: what buttons and titles call it.
        why_not: returns why it is not possible now; "" if it is.
        prepare: returns what will happen, and the forms.
        act: does it, with what was typed. Raises Mistyped, CheckpointError and Refused. None if the page
            only shows something.
    """

    name: str
    label: str
    why_not: Callable[[Explanation], str]
    prepare: Callable[[Target], Awaitable[Prepared]]
    act: Act | None = None


def intact(explanation: Explanation) -> str:
    """Return why a run that may be in any state cannot be used: its journal is damaged."""
    return "" if explanation.problem is None else f"Its journal is damaged: {explanation.problem}"


def not_ended(explanation: Explanation) -> str:
    """Return why a run cannot be changed that is completed or cancelled, or damaged."""
    if explanation.status.has_ended:
        return f"The run is {explanation.status} already."
    return intact(explanation)


def only_if(*statuses: RunStatus) -> Callable[[Explanation], str]:
    """Return what says why a run with another status cannot be changed."""

    def why_not(explanation: Explanation) -> str:
        if explanation.status not in statuses:
            return f"This is not possible now. {explanation.reason}"
        return intact(explanation)

    return why_not
