"""A trial: one program, the lives of its run with all that happens to them, and what goes wrong."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from effectflow.checkpoint import Finished
from effectflow.stores import MemoryStore
from tests.exploration import check
from tests.exploration.bodies import subject_of
from tests.exploration.lives import RUN, Driver, End, LifePlan, Lived, Storage, live
from tests.exploration.processes import copy_of
from tests.exploration.programs import KINDS, Node, draw
from tests.exploration.virtual_time import Backend, VirtualTime, run_virtually
from tests.exploration.world import Problem, World, letters

StoreKind = Literal["memory", "sqlite"]


@dataclass(frozen=True)
class Case:
    """What a trial tries.

    Attributes:
        seed: chooses what is not given here: the messages, and what happens after a failure.
        program: the program of the run.
        lives: what happens until the run ends for the first time. The last life is not disturbed.
        cancel_at: when somebody requests the cancellation of the run; None if nobody does.
    """

    seed: str
    program: Node
    lives: tuple[LifePlan, ...]
    cancel_at: float | None = None
    backend: Backend = "asyncio"
    store: StoreKind = "memory"

    def on(self, backend: Backend) -> Case:
        """Return the same case on another event loop."""
        return replace(self, backend=backend)


@dataclass
class Trial:
    """Runs a case.

    Attributes:
        lives: how many lives it has lived.
        problems: what is wrong; it ends with the first life with a problem.
        story: the lives of the run, with their ends.
        last: the last of these lives.
    """

    case: Case
    lives: int = 0
    problems: list[Problem] = field(default_factory=list[Problem])
    story: list[tuple[LifePlan, Lived]] = field(default_factory=list[tuple[LifePlan, Lived]])

    @property
    def last(self) -> Lived:
        return self.story[-1][1]

    def run(self) -> None:
        case = self.case
        self._r = random.Random(f"trial {case.seed}")
        self._world = World(case.program)
        self._world.inbox = letters(case.program, case.seed)
        with storage_of(case.store) as self._storage:
            end = self._to_the_end(list(case.lives))
            for attempt in range(3):
                if end is None or not end.is_failure:
                    return
                end = self._try_again(end, attempt)

    def _to_the_end(self, plans: list[LifePlan]) -> End | None:
        """Live until the run ends. Return its end; None if something is wrong."""
        last = plans[-1]
        # A worker that ends because the run has failed may have begun to cancel it.
        for plan in [*plans, replace(last, seed=f"{last.seed} again", by="resume")]:
            if plan.by == "plan":
                self._plan(plan)
                continue
            lived = self._live(plan)
            if self.problems:
                return None
            if lived.end.is_of_run:
                self._check_end(lived.end)
                return None if self.problems else lived.end
        self.problems.append(Problem("the run does not end"))
        return None

    def _live(self, plan: LifePlan) -> Lived:
        world = self._world
        known = check.completed(self.last.journals) if self.story else check.Counter()
        done, kept = world.done.copy(), set(world.kept)
        lived = self._lived(plan, world)
        if self.story and lived.journals == self.last.journals:
            # It has replayed sagas that had ended, and died before it recorded anything.
            world.kept = kept
        self.story.append((plan, lived))
        self.problems += [*world.problems, *check.problems_of_life(lived, world, known, done)]
        return lived

    def _lived(self, plan: LifePlan, world: World, storage: Storage | None = None) -> Lived:
        self.lives += 1
        return live(
            subject_of(self.case.program),
            world,
            plan,
            storage or self._storage,
            backend=self.case.backend,
            cancel_at=self.case.cancel_at if storage is None else None,
        )

    def _plan(self, plan: LifePlan) -> Lived | None:
        """Ask what a resume would do."""
        if not self.story or not self.last.journals.entries:
            return None
        before = self.last.journals
        lived = self._lived(plan, self._world)
        if lived.end.text or lived.work or lived.journals != before:
            self.problems.append(Problem(check.PLAN, f"{lived.end} {lived.work}"))
        return lived

    # What follows the end of a run.

    def _check_end(self, end: End) -> None:
        self.problems += check.problems_of_end(end, self._world)
        is_cancelled_later = end.is_failure and self.case.cancel_at is not None
        if not self.problems and not is_cancelled_later:
            self._start_again(end)
        if not self.problems:
            self._replay(end)

    def _start_again(self, end: End) -> None:
        before = self.last.journals
        # A start would try a failed run again.
        plan = LifePlan(f"{self.case.seed} again", by="result" if end.is_failure else "start")
        lived = self._lived(plan, self._world)
        if not lived.end.is_like(end):
            self.problems.append(Problem(check.OTHER_START, f"{end} / {lived.end}"))
        elif lived.work or lived.journals != before:
            self.problems.append(Problem(check.BUSY_START, f"{lived.work}"))

    def _replay(self, end: End) -> None:
        """Replay the run up to its end, in a copy."""
        if end.is_failure:
            asked = self._plan(LifePlan(f"{self.case.seed} plan", by="plan"))
            if asked is None or not check.is_final(asked.end.plan):
                return  # a resume would try something again
            ended = self.last.journals.entries[RUN][-1]
            if isinstance(ended, Finished) and ended.retry:
                # What it tries again begins no step, such as a timeout around a failure that stands.
                return
        world = self._world
        again = World(self.case.program, world.now, set(world.fixed), held=set(world.held))
        plan = LifePlan(f"{self.case.seed} replay", by="resume")
        lived = self._lived(plan, again, self._copy())
        if not lived.end.is_like(end):
            self.problems.append(Problem(check.OTHER_REPLAY, f"{end} / {lived.end}"))
        elif lived.work:
            self.problems.append(Problem(check.BUSY_REPLAY, f"{lived.work}"))

    def _copy(self) -> Storage:
        async def main(time: VirtualTime) -> MemoryStore:
            async with self._storage.opened(time) as store:
                return await copy_of(store, without_end_of=RUN)

        copy, _ = run_virtually(self.case.backend, main, now=0, seconds=1000)
        return Storage(copy)

    def _try_again(self, end: End, attempt: int) -> End | None:
        """Resume a failed run, mostly with what failed corrected. Return its new end."""
        r = self._r
        is_fixed = self.last.life.can_be_corrected(end.names) and r.random() < 0.8
        if is_fixed:
            self._world.fixed.update(end.names)
        elif attempt:
            return None
        seed = f"{self.case.seed} attempt {attempt}"
        new = self._to_the_end(draw_lives(r, seed, most=2, drivers=("start", "resume")))
        if is_fixed and new is not None and set(new.names) & set(end.names):
            self.problems.append(Problem(check.NOT_RETRIED, f"{end} / {new}"))
        return new


@contextmanager
def storage_of(kind: StoreKind) -> Iterator[Storage]:
    if kind == "memory":
        yield Storage(MemoryStore())
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Storage(file=Path(folder) / "runs.db")


# Cases.


DRIVERS: tuple[Driver, ...] = ("start", "start", "resume", "worker")


def draw_lives(
    r: random.Random, seed: str, *, most: int = 7, drivers: tuple[Driver, ...] = DRIVERS
) -> list[LifePlan]:
    """Draw lives that are disturbed, and a last one that is not."""
    plans: list[LifePlan] = []
    while len(plans) < most and r.random() < 0.5:
        plans.append(_disturbed(r, draw_life(r, f"{seed} {len(plans)}", drivers)))
        if r.random() < 0.3:
            plans.append(LifePlan(f"{seed} {len(plans)} plan", by="plan"))
    return [*plans, draw_life(r, f"{seed} last", drivers)]


def draw_life(r: random.Random, seed: str, drivers: tuple[Driver, ...] = DRIVERS) -> LifePlan:
    return LifePlan(
        seed,
        by=r.choice(drivers),
        pause=r.choice([0, 0, 1, 5]),
        is_native=r.random() < 0.5,
        suspend_after=r.choice([0, 1, 5]),
        grace=r.choice([0, 0.5, 10]),
        is_slow=True,
    )


def _disturbed(r: random.Random, plan: LifePlan) -> LifePlan:
    match r.choice(["append", "append", "stop", "stop", "time"]):
        case "append":
            return replace(plan, dies_after=r.randint(1, 6), is_durable=r.random() < 0.5)
        case "stop":
            return replace(plan, stops_at=r.choice([0, 0.3, 1, 2.5]))
        case _:
            return replace(plan, dies_at=r.choice([0.05, 0.7, 2]))


@dataclass
class Exploration:
    """Tries one program: undisturbed, and with a process that dies at some of its appends.

    Attributes:
        seed: chooses everything.
        points: at how many appends the first process dies.
        lives: how many lives were lived.
        failed: the first trial with a problem; None if there is none.
    """

    seed: int
    kinds: frozenset[str] = KINDS
    backend: Backend = "asyncio"
    store: StoreKind = "memory"
    points: int = 12
    lives: int = 0
    failed: Trial | None = None

    def run(self) -> None:
        whole = self._try(self.undisturbed())
        if self.failed is not None:
            return
        for case in self.cases(whole.story[0][1].appends):
            self._try(case)
            if self.failed is not None:
                return

    def _try(self, case: Case) -> Trial:
        trial = Trial(case)
        trial.run()
        self.lives += trial.lives
        if trial.problems:
            self.failed = trial
        return trial

    def undisturbed(self) -> Case:
        r = random.Random(f"case {self.seed}")
        program = draw(self.seed, self.kinds)
        life = replace(draw_life(r, f"{self.seed} whole"), by=r.choice(["start", "worker"]))
        cancel_at = r.choice([None, None, None, None, 1.0, 3.0, 8.0])
        if "cancel" not in self.kinds:
            cancel_at = None
        return Case(str(self.seed), program, (life,), cancel_at, self.backend, self.store)

    def cases(self, appends: int) -> Iterator[Case]:
        """Yield the cases in which the first process dies, at some of so many appends."""
        whole = self.undisturbed()
        r = random.Random(f"points {self.seed}")
        numbers = range(1, appends + 1)
        for number in numbers if appends <= self.points else r.sample(numbers, self.points):
            seed = f"{self.seed}.{number}"
            lives = random.Random(f"lives {seed}")
            first = replace(
                draw_life(lives, f"{seed} first"),
                by=lives.choice(["start", "worker"]),
                dies_after=number,
                is_durable=lives.random() < 0.7,
            )
            others = draw_lives(lives, seed)
            if "plan" not in self.kinds:
                others = [plan for plan in others if plan.by != "plan"]
            yield replace(whole, seed=seed, lives=(first, *others))
