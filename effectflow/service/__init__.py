"""Run workflows in a service: submit them, drive them in workers, send to them, and stop in order."""

from typing import TYPE_CHECKING

from effectflow.effects.lazy_names import lazy_names

if TYPE_CHECKING:
    from effectflow.checkpoint.store import Limit
    from effectflow.effects.saga import compensate, saga
    from effectflow.service.app import App
    from effectflow.service.client import Change, Client, Handle
    from effectflow.service.environment import BadEnvironment
    from effectflow.service.process_signals import StoppedBySignal, run_until_signal
    from effectflow.service.publishing import publish
    from effectflow.service.schedule import Schedule
    from effectflow.service.signal import Signal
    from effectflow.service.worker import Worker
    from effectflow.workflows.children import Child, spawn

__all__ = [
    "App",
    "BadEnvironment",
    "Change",
    "Child",
    "Client",
    "Handle",
    "Limit",
    "Schedule",
    "Signal",
    "StoppedBySignal",
    "Worker",
    "compensate",
    "publish",
    "run_until_signal",
    "saga",
    "spawn",
]


if not TYPE_CHECKING:  # a type checker would take every name for one of this package
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "app": "App",
            "client": "Change Client Handle",
            "environment": "BadEnvironment",
            "publishing": "publish",
            "schedule": "Schedule",
            "signal": "Signal",
            "process_signals": "StoppedBySignal run_until_signal",
            "worker": "Worker",
            ".checkpoint.store": "Limit",
            ".effects.saga": "compensate saga",
            ".workflows.children": "Child spawn",
        },
    )
