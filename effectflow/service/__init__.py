"""Run workflows in a service: submit runs, drive them in workers, and send messages to them."""

from typing import TYPE_CHECKING

from effectflow.effects.imports import lazy_names

if TYPE_CHECKING:
    from effectflow.effects.saga import compensate as compensate, saga as saga
    from effectflow.runs.retention import Retention as Retention
    from effectflow.runs.spawned import Child as Child, spawn as spawn
    from effectflow.service.app import App as App
    from effectflow.service.changes import Change as Change
    from effectflow.service.client import Client as Client
    from effectflow.service.environment import BadEnvironment as BadEnvironment
    from effectflow.service.handle import Handle as Handle
    from effectflow.service.health import Health as Health
    from effectflow.service.pauses import Pause as Pause
    from effectflow.service.process_signals import (
        StoppedBySignal as StoppedBySignal,
        run_until_signal as run_until_signal,
    )
    from effectflow.service.publishing import publish as publish
    from effectflow.service.schedule import Schedule as Schedule
    from effectflow.service.signal import Signal as Signal
    from effectflow.service.worker import Worker as Worker


if not TYPE_CHECKING:  # a type checker would take every name for one of this package
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".effects.saga": "compensate saga",
            ".runs.retention": "Retention",
            ".runs.spawned": "Child spawn",
            "app": "App",
            "changes": "Change",
            "client": "Client",
            "environment": "BadEnvironment",
            "handle": "Handle",
            "health": "Health",
            "pauses": "Pause",
            "process_signals": "StoppedBySignal run_until_signal",
            "publishing": "publish",
            "schedule": "Schedule",
            "signal": "Signal",
            "worker": "Worker",
        },
    )
