"""The commands that messages suggest, with the options that make them find the same runs."""

from __future__ import annotations

import re
import shlex
from contextvars import ContextVar
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class RunLocation:
    """Where the runs of this command are, by its options.

    Attributes:
        options: the options that name the store and its keys.
        app: the MODULE:APP of the App that says where they are; None without one.
        module: the module with the workflow, if `app` is None; None without one.
    """

    options: tuple[str, ...] = ()
    app: str | None = None
    module: str | None = None

    def options_of(self, command: str, module: str | None = None) -> list[str]:
        """Return the options that another command needs."""
        app = self.app or module or (self.module if command in _NEED_CODE else None)
        return [*(["--app", app] if app is not None else []), *self.options]


_NEED_CODE = ("resume", "plan")

_COMMAND = re.compile(r"`effectflow (list|show|history|plan|resume|verify|repair)\b([^`]*)`")

_PASSWORD = re.compile(
    r"(\w*(?:passw|pwd|secret|token)\w*\s*=\s*)(?:'(?:\\.|[^'\\])*'?|[^&;#\s]*)|(//[^:@/?#]*:).*(?=@)",
    re.IGNORECASE,
)
"""The value of a parameter that nobody should see, and the password before a host."""

_location: ContextVar[RunLocation] = ContextVar("effectflow_location")


def without_password(url: str) -> str:
    """Return the URL of a store with `...` for its passwords, which the user has to add again."""
    return _PASSWORD.sub(lambda found: f"{found[1] or found[2]}...", url)


def suggest_for(location: RunLocation) -> None:
    """Let the suggestions of this command lead to these runs."""
    _location.set(location)


def suggest_code(module: str) -> None:
    """Let the suggestions of this command name the module with the workflow."""
    _location.set(replace(_location.get(), module=module))


def suggested(*words: str, module: str | None = None) -> str:
    """Return a command for the same runs, as a user types it.

    Parameters:
        words: the name of the command, and its arguments.
        module: what brings the workflow of the run, for a command that needs its code.
    """
    return shlex.join(["effectflow", *words, *_location.get().options_of(words[0], module)])


def with_options(text: str) -> str:
    """Return a text in which the quoted commands lead to the same runs."""

    def complete(found: re.Match[str]) -> str:
        name, rest = found.groups()
        options = [] if " --app " in rest else _location.get().options_of(name)
        return f"`{' '.join([f'effectflow {name}{rest}', *map(shlex.quote, options)])}`"

    return _COMMAND.sub(complete, text)


def message_of(error: Exception) -> str:
    """Return the message of an error, whose commands lead to the same runs."""
    return with_options(str(error))
