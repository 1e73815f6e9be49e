"""`effectflow ui`: what it serves, where, and how it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import COMMAND, ENVIRONMENT, Command
from tests.cli.services import submitted, write_mall
from tests.programs import PIPE, Program

APP = ("--app", "mall:app")


@contextmanager
def serving(folder: Path, *arguments: str, **variables: str) -> Iterator[tuple[Program, str]]:
    """Serve pages in a process. Yield it, and the address that it prints."""
    started = Program(
        [*COMMAND, "ui", "--port", "0", *arguments],
        cwd=folder,
        env=ENVIRONMENT | variables,
        stdout=PIPE,
        stderr=PIPE,
    )
    with started:
        assert started.stdout is not None
        try:
            yield started, started.stdout.readline().split()[-1]
        finally:
            started.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_at_once_while_a_browser_watches(folder: Path, number: signal.Signals) -> None:
    submitted(write_mall(folder), "order", 5, "order-1")
    with serving(folder, *APP) as (program, address):
        events = {"accept": "text/event-stream"}
        with httpx.stream("GET", address, headers=events, timeout=20) as stream:
            lines = stream.iter_lines()
            assert "event: page" in lines
            program.send_signal(number)
            rest = list(lines)
            _, problems = program.communicate()
        assert any("order-1" in line for line in rest)
        # A stream that the server cuts off, after five seconds, raises here, and the server says so, too.
        assert problems == ""
        assert program.returncode == (0 if number is signal.SIGINT else -number)


def test_where_the_runs_are(folder: Path) -> None:
    """An App says so, but `--store` comes first; a module without an App needs one."""
    mall = write_mall(folder)
    submitted(mall, "order", 5, "of-the-app")

    def shown(*arguments: str, **variables: str) -> tuple[bool, bool]:
        with serving(folder, *arguments, **variables) as (_, address):
            text = httpx.get(address, timeout=20).text
            return "of-the-app" in text, "changes allowed" in text

    (folder / "plain.py").write_text("from mall import order\n\ndef environment(_): ...\n")
    empty = ("--store", "memory:")
    assert shown(*APP, EFFECTFLOW_STORE="memory:") == (True, True)
    assert shown(*APP, "--read-only") == (True, False)
    assert shown(*APP, *empty) == (False, True)
    assert shown("--app", "plain", *empty) == (False, True)
    assert shown(*empty) == (False, False)
    # Nothing in an archive can be changed.
    (folder / "none.jsonl").touch()
    assert shown(*APP, "--store", "none.jsonl") == (False, False)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--app", "mall"), "'mall' is not an App: try mall:app"),
        (("--app", "unknown:app"), "cannot import module 'unknown'"),
        (("--app", "mall:shop"), "has no App or workflow 'shop'"),
        (("--store", "missing.db"), "the store missing.db does not exist"),
        (("--store", "memory:", "--host", "0.0.0.0"), "set a token of at least 16 characters"),
        (("--store", "memory:", "--host", "0.0.0.0", "--token", "short"), "at least 16 characters"),
    ],
)
def test_what_cannot_be_served_is_told(
    effectflow: Command, folder: Path, arguments: tuple[str, ...], problem: str
) -> None:
    write_mall(folder)
    ran = effectflow("ui", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert problem in ran.err


def test_a_store_that_cannot_be_opened_is_told(effectflow: Command, folder: Path) -> None:
    (folder / "notes.db").write_text("no database" * 100)
    ran = effectflow("ui", "--store", "notes.db")
    assert (ran.code, ran.out, "not an SQLite database" in ran.err) == (4, "", True)


def test_a_port_in_use_is_told(effectflow: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        ran = effectflow("ui", "--store", "memory:", "--port", str(used.getsockname()[1]))
    assert (ran.code, "cannot listen on 127.0.0.1" in ran.err) == (2, True)


def test_a_missing_extra_is_named(folder: Path) -> None:
    # Programs of tests are forked from one that has imported the package.
    code = "import sys; sys.modules['starlette'] = None; import effectflow.__main__"
    command = [sys.executable, "-c", code, "ui", "--store", "memory:"]
    ended = subprocess.run(
        command,
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "pip install 'effectflow[ui]'" in ended.stderr


def test_a_token_opens_the_pages(folder: Path) -> None:
    with serving(folder, "--store", "memory:", "--token", "new") as (_, address):
        assert "/?token=" in address
        with httpx.Client(follow_redirects=True, timeout=20) as browser:
            assert browser.get(address.partition("?")[0]).status_code == 401
            assert browser.get(address).status_code == 200
            assert browser.get(address.partition("?")[0]).status_code == 200


def test_another_name_of_this_host_is_refused(folder: Path) -> None:
    with serving(folder, "--store", "memory:") as (_, address):
        answer = httpx.get(address, headers={"host": "evil.example"}, timeout=20)
        assert answer.status_code == 421
