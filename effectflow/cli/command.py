"""What all commands do: find the runs, call the command, and print its answer."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature
from typing import Any, TypeAlias, cast

import anyio
import typer
from rich.console import Console
from rich.text import Text

from effectflow.cli.access import access_of, options_of
from effectflow.cli.options import (
    ExitCode,
    JsonOption,
    LatestResumableOption,
    RunArgument,
    check_choice,
)
from effectflow.cli.render import print_json, say_lines


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command prints, and how it ends.

    Attributes:
        data: what `--json` prints; None if it was printed before.
        lines: what it prints without `--json`.
        problems: what it prints on standard error.
        code: its exit code.
        is_on_one_line: whether the JSON has no line breaks.
    """

    data: object
    lines: Iterable[str | Text] = ()
    problems: Iterable[str] = ()
    code: ExitCode = ExitCode.DONE
    is_on_one_line: bool = False


_Command: TypeAlias = Callable[..., Answer | Awaitable[Answer]]


def command(
    app_option: Any,
    *,
    latest: Any = None,
    keys: bool = True,
    json_option: Any = JsonOption,
    must_exist: bool = True,
) -> Callable[[_Command], Callable[..., None]]:
    """Make a command of a function that gets an Access as its first argument, and returns an Answer.

    The command has the parameters of the function, the options that say where its runs are, and
    `--json`. The store is open while an async function runs.

    Parameters:
        app_option: the option `--app`; None for a command that needs no App.
        latest: the option `--latest` of a command that takes one run, whose id is the second argument.
        keys: whether the command has the options for keys.
        json_option: the option `--json`.
        must_exist: whether a store that does not exist is an error.
    """
    shared = {**options_of(app_option, keys=keys), "as_json": (json_option, False)}

    def decorate(function: _Command) -> Callable[..., None]:
        @wraps(function)
        def call(ctx: typer.Context, **values: Any) -> None:
            access = access_of(ctx, app_option, **{name: values.pop(name) for name in shared})
            choice = None if latest is None else (values.pop("run_id"), values.pop("latest"))
            if choice is not None:
                check_choice(run_id=choice[0], latest=choice[1])

            async def in_store() -> Answer:
                async with access.store:
                    if choice is not None:
                        resumable = latest is LatestResumableOption
                        values["run_id"] = await access.chosen(*choice, resumable=resumable)
                    return await cast("Awaitable[Answer]", function(access, **values))

            if not inspect.iscoroutinefunction(function):
                answer = cast("Answer", function(access, **values))
            else:
                if must_exist:
                    access.check_store()
                answer = anyio.run(in_store)
            _print(answer, as_json=access.as_json)

        _, *own = inspect.signature(function, eval_str=True).parameters.values()
        first = {"ctx": (typer.Context, Parameter.empty)}
        if latest is not None:
            first |= {"run_id": (RunArgument, None), "latest": (latest, False)}
        parameters = {
            **first,
            **{
                each.name: (each.annotation, each.default) for each in own if each.name not in first
            },
            **shared,
        }
        # Typer reads which options a command has.
        call.__signature__ = Signature(  # type: ignore[attr-defined]
            [
                Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
                for name, (annotation, default) in parameters.items()
            ]
        )
        return call

    return decorate


def _print(answer: Answer, *, as_json: bool) -> None:
    """Print an answer, and exit with its code."""
    if as_json:
        if answer.data is not None:
            print_json(answer.data, on_one_line=answer.is_on_one_line)
    else:
        say_lines(answer.lines)
    say_lines(answer.problems, Console(stderr=True))
    raise typer.Exit(answer.code)
