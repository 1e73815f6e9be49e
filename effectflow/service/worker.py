"""`Worker`: drive the runs of a store that are due, in any asyncio or trio program."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Generic, Self, TypeVar

import anyio

from effectflow.checkpoint.store import Limit
from effectflow.effects.arguments import check_count, check_type
from effectflow.effects.clock import Clock, Duration, SystemClock, waiting_time
from effectflow.effects.event_loop import is_cancellation, shielded
from effectflow.service.app import App
from effectflow.service.client import Client
from effectflow.service.shift import Shift, Terms

Env = TypeVar("Env")


class Worker(Generic[Env]):
    """Drives the runs of an `App`: an async context manager for any asyncio or trio program.

    While it is open, it takes runs that were submitted, are due, received a message, or whose process
    died, and renews their leases. If a run only waits, for longer than some seconds, the worker suspends
    it: the run needs no memory until any worker continues it. A failed run stays failed until someone
    resumes it. A run that crashes its process again and again fails. A run that does not fit this program
    is left for other workers, and shown as blocked.

    At the end of the context, the worker takes no more runs. Steps in progress may end within `grace`.
    Then the worker interrupts the rest and releases all leases, so that other workers continue the runs
    at once.

    The worker logs errors of the store, and tries again.

    Attributes:
        app: the App whose runs it drives.
        client: a client of the same checkpoints.

    Example:
        >>> from dataclasses import dataclass
        >>> import anyio
        >>> from effectflow import App, Checkpoints, Do, pure, workflow
        >>> from effectflow.stores import MemoryStore
        >>> @dataclass(frozen=True)
        ... class Shop:
        ...     checkpoints: Checkpoints
        >>> @workflow
        ... def greet(name: str) -> Do[Shop, str, str]:
        ...     return (yield from pure(f"Hello {name}"))
        >>> app = App([greet], environment=Shop, checkpoints=Checkpoints(MemoryStore()))
        >>> async def main():
        ...     async with Worker(app) as worker:
        ...         handle = await worker.client.submit(greet, "Ada")
        ...         print(await handle.result())
        >>> anyio.run(main)
        <Success: Hello Ada>
    """

    def __init__(
        self,
        app: App[Env],
        *,
        concurrency: int = 100,
        limits: Mapping[str, Limit] | None = None,
        grace: Duration = 10.0,
        suspend_after: Duration = 5.0,
        max_crashes: int = 5,
        clock: Clock | None = None,
    ) -> None:
        """Create a worker.

        Parameters:
            concurrency: the number of runs that it drives at the same time.
            limits: limits by the name of the workflow, across all workers. Give all workers the same.
            grace: the seconds, or the `timedelta`, that steps in progress may take at the end.
            suspend_after: suspend a run once all its flows wait for more than this many seconds.
            max_crashes: fail a run after this many processes in a row have died with it.
            clock: tells the time; tests pass a `TestClock`. Runs are due by this clock.

        Raises ValueError for a limit of a workflow that the app does not have, and for a number that is
        too small.
        """
        check_type(
            app,
            App,
            "a Worker takes an App, such as App([greet], environment=..., checkpoints=...)",
        )
        check_count("concurrency", concurrency, least=1)
        check_count("max_crashes", max_crashes, least=1)
        for workflow, limit in (limits or {}).items():
            check_type(limit, Limit, f"limits takes a Limit for workflow {workflow!r}")
        unknown = sorted(set(limits or {}) - set(app.workflows))
        if unknown:
            raise ValueError(
                f"limits names workflows that the App does not have: {', '.join(unknown)}"
            )
        self.app = app
        self._terms = Terms(
            concurrency=concurrency,
            limits=dict(limits or {}),
            grace=waiting_time("grace", grace),
            suspend_after=waiting_time("suspend_after", suspend_after),
            max_crashes=max_crashes,
            clock=clock or SystemClock(),
        )
        self.client: Client = Client(app.checkpoints, clock=self._terms.clock)
        self._serving: AbstractAsyncContextManager[None] | None = None
        self._shift: Shift | None = None

    async def __aenter__(self) -> Self:
        if self._serving is not None:
            raise RuntimeError("this worker is open already: create one for each `async with`")
        self._serving = self._serve()
        try:
            await self._serving.__aenter__()
        except BaseException:
            # Nothing is open now, so the caller can try again.
            self._serving = None
            raise
        return self

    async def __aexit__(self, *raised: Any) -> None:
        assert self._serving is not None
        serving, self._serving = self._serving, None
        await serving.__aexit__(*raised)

    def hurry(self) -> None:
        """Interrupt steps in progress at once when the context ends, instead of after `grace`.

        Use it for a second signal from an impatient user. Call it in the event loop, also while the
        worker ends.
        """
        if self._shift is not None:
            self._shift.hurry()

    @asynccontextmanager
    async def _serve(self) -> AsyncGenerator[None]:
        raised: BaseException | None = None
        async with (
            self.app.checkpoints.store,
            self.app.opened_environment() as env,
            anyio.create_task_group() as tasks,
        ):
            self._shift = shift = Shift(self.app, env, self.client, self._terms, tasks)
            shift.begin()
            try:
                yield
            except BaseException as error:
                if is_cancellation(error):
                    raise
                # Hidden from the task group, which would wrap it.
                raised = error
            finally:
                await shielded(shift.end())
        if raised is not None:
            raise raised
