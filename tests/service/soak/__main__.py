"""Kill workers that share the runs of a service, at random moments, and restart their server.

    python -m tests.service.soak postgres --runs 1000

Three worker processes drive journeys: runs of ten steps with signals, sleeps, calls and spawned runs,
and sagas, of which some fail and some are cancelled. Workers are killed (SIGKILL) or asked to end,
again and again, and others take their place. A server is killed once and stopped once, and started again.
An operator, who is killed as well, cancels, pauses, unpauses, retries, settles, forks, reruns and prunes
runs. A third of the way, workers with a new version of the program appear, and later only those.
In the end every run must have ended as planned, every side effect must be in a journal and belong to an
attempt there, no completed step may have run again, and no lease and no message may be left.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random, randrange
from tempfile import TemporaryDirectory

import anyio

from tests.service.soak.checks import check, tell_unfinished, wait_until_all_have_ended
from tests.service.soak.journeys import side_effects
from tests.service.soak.operators import operate
from tests.service.soak.processes import Place, serve, work
from tests.stores.faults.forking import ending_of, forked, get_ready
from tests.stores.servers import PostgresServer

WORKERS = 3
RESTARTS = 2

STOPPED = (0, -signal.SIGTERM)
"""How workers end that are asked to. One that has hardly begun has no handler for the signal yet."""

LONGEST_PEACE = 30_000
"""The bytes of side effects between two ends of workers: on a slow machine they live for longer."""

BYTES_PER_JOURNEY = 1500

LONGEST_PEACE_PER_JOURNEY = 300
"""The same for each journey: a short soak has a few ends of workers as well."""


@dataclass
class Soak:
    """A soak, and what has happened in it.

    Attributes:
        server: what is restarted; None for a store without a server.
        deadline: when everything must have ended, by the monotonic clock.
    """

    place: Place
    server: PostgresServer | None
    chance: Random
    deadline: float
    kills: int = 0
    stops: int = 0
    restarts: int = 0

    def run(self) -> None:
        workers = [self._worker() for _ in range(WORKERS)]
        customers = forked(lambda: anyio.run(serve, self.place))
        operator = self._operator()
        try:
            while self._lasts_for_a_while(customers):
                self._restart_server_now_and_then()
                for victim in self.chance.choice([workers[:1], workers[1:], workers[:]]):
                    workers.remove(victim)
                    self._end(victim)
                    workers.append(self._worker())
                if self.chance.random() < 0.3:
                    os.kill(operator, signal.SIGKILL)
                    check_ending(operator, -signal.SIGKILL)
                    operator = self._operator()
            os.kill(operator, signal.SIGKILL)
            check_ending(operator, -signal.SIGKILL)
            self._call(wait_until_all_have_ended)
            for worker in workers:
                os.kill(worker, signal.SIGTERM)
            while workers:
                check_ending(workers.pop(), *STOPPED)
        except BaseException:
            for process in (*workers, customers, operator):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            raise
        self._call(check)

    def _lasts_for_a_while(self, customers: int) -> bool:
        """Wait until the runs have got further. Return False once all customers are served."""
        longest = min(LONGEST_PEACE, LONGEST_PEACE_PER_JOURNEY * self.place.runs)
        size = self.place.world.stat().st_size + self.chance.uniform(0, longest)
        while is_running := self._is_running(customers):
            if self.place.world.stat().st_size >= size:
                break
            time.sleep(0.01)
        return is_running

    def _worker(self) -> int:
        """Start a worker: with the old program at first, then of either, and at last with the new one."""
        backend = self.chance.choice(["asyncio", "trio"])
        share = self.place.world.stat().st_size / (BYTES_PER_JOURNEY * self.place.runs)
        is_new = self.chance.uniform(1, 2) < 3 * share
        return forked(lambda: anyio.run(partial(work, is_new=is_new), self.place, backend=backend))

    def _operator(self) -> int:
        return forked(lambda: anyio.run(operate, self.place))

    def _end(self, worker: int) -> None:
        if self.chance.random() < 0.8:
            os.kill(worker, signal.SIGKILL)
            check_ending(worker, -signal.SIGKILL)
            self.kills += 1
        else:
            os.kill(worker, signal.SIGTERM)
            check_ending(worker, *STOPPED)
            self.stops += 1

    def _restart_server_now_and_then(self) -> None:
        """Restart the server when a third and two thirds of the journeys have ended."""
        served = len(self.place.served.read_text().splitlines())
        if self.server is None or served < (self.restarts + 1) * self.place.runs / (RESTARTS + 1):
            return
        if self.restarts == RESTARTS:
            return
        if self.restarts % 2:
            self.server.stop()
        else:
            self.server.kill()
        self.server.start()
        self.restarts += 1

    def _call(self, work: Callable[[Place], Awaitable[None]]) -> None:
        """Call this in another process, so that this one has no threads and can fork."""
        process = forked(lambda: anyio.run(work, self.place))
        try:
            while self._is_running(process):
                time.sleep(0.05)
        except BaseException:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            raise

    def _is_running(self, process: int) -> bool:
        """Return whether a process has not ended. Raise SystemExit if it failed, or if it is late."""
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            if status:
                raise SystemExit("a process has failed; its traceback is above")
            return False
        if time.monotonic() > self.deadline:
            ending_of(forked(lambda: anyio.run(tell_unfinished, self.place)))
            raise SystemExit("the runs above have not ended in time")
        return True


def check_ending(worker: int, *right: int) -> None:
    """Wait for a worker, and check how it has ended."""
    ending = ending_of(worker)
    if ending not in right:
        raise SystemExit(f"a worker has ended with {ending}; what it said is above")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", choices=["postgres", "sqlite"])
    parser.add_argument("--runs", type=int, default=1000, help="journeys; others are added to them")
    parser.add_argument("--seconds", type=float, default=600, help="how long it may take")
    parser.add_argument("--seed", type=int, default=randrange(10**6))
    arguments = parser.parse_args()
    print(f"{arguments.store}, seed {arguments.seed}:", end=" ", flush=True)
    logging.basicConfig(format="%(asctime)s %(process)d %(message)s")
    get_ready()
    anyio.run(anyio.sleep, 0, backend="trio")
    is_postgres = arguments.store == "postgres"
    with (
        TemporaryDirectory() as folder,
        PostgresServer.with_own_data() if is_postgres else nullcontext() as server,
    ):
        url = f"sqlite:///{folder}/runs.db" if server is None else server.url
        place = Place(url, Path(folder), arguments.runs, arguments.seed)
        place.served.touch()
        place.world.touch()
        place.unwanted.touch()
        # Its driver is imported here, and not in each process.
        place.open()
        began = time.monotonic()
        soak = Soak(place, server, Random(arguments.seed), began + arguments.seconds)
        soak.run()
        effects = side_effects(place.world)
        new = sum(effect.step.startswith("insure") for effect in effects)
    print(
        f"{arguments.runs} journeys ({new} by new code) with {len(effects)} attempts of steps in "
        f"{time.monotonic() - began:.0f} s, "
        f"{soak.kills} kills, {soak.stops} stops, {soak.restarts} restarts of the server, nothing lost"
    )


if __name__ == "__main__":
    main()
