"""Run workflows in a service: submit them, drive them in workers, send to them, and stop in order."""

from importlib import import_module
from typing import TYPE_CHECKING

from effectflow.service.signals import StoppedBySignal, run_until_signal

if TYPE_CHECKING:
    from effectflow.checkpoint.store import Limit
    from effectflow.service.app import App
    from effectflow.service.client import Change, Client, Handle
    from effectflow.service.environment import BadEnvironment
    from effectflow.service.schedule import Schedule
    from effectflow.service.signal import Signal
    from effectflow.service.worker import Worker

__all__ = [
    "App",
    "BadEnvironment",
    "Change",
    "Client",
    "Handle",
    "Limit",
    "Schedule",
    "Signal",
    "StoppedBySignal",
    "Worker",
    "run_until_signal",
]

_HOMES = {
    "App": "effectflow.service.app",
    "BadEnvironment": "effectflow.service.environment",
    "Change": "effectflow.service.client",
    "Client": "effectflow.service.client",
    "Handle": "effectflow.service.client",
    "Limit": "effectflow.checkpoint.store",
    "Schedule": "effectflow.service.schedule",
    "Signal": "effectflow.service.signal",
    "Worker": "effectflow.service.worker",
}
"""The modules of names that only services use. They are imported when used."""


if not TYPE_CHECKING:  # a type checker would take every name for one of this package

    def __getattr__(name: str) -> object:
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
