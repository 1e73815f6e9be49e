"""Whether the owner of a lease is known to be dead, and when a lease ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from effectflow.checkpoint import Lease, Owner
from effectflow.checkpoint.schema import schema_of

PRINT_OWNER = (
    "import sys; from effectflow.checkpoint import Owner; print(Owner.new(), flush=True); "
    "sys.stdin.read()"
)


@contextmanager
def another_process() -> Generator[tuple[Owner, subprocess.Popen[str]]]:
    """A process that lives until its standard input is closed, and an owner for it."""
    command = [sys.executable, "-c", PRINT_OWNER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        owner = Owner.parse(process.stdout.readline().strip())
        assert owner is not None
        try:
            yield owner, process
        finally:
            process.kill()


@pytest.fixture
def hides_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make /proc look as if it was mounted with `hidepid=2`: it hides the processes of other users."""
    read = Path.read_text

    def read_text(path: Path, *args: Any, **options: Any) -> str:
        if path.name == "stat" and path.parent.name.isdigit():
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return read(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", read_text)


def test_a_process_is_dead_once_it_has_ended() -> None:
    with another_process() as (owner, process):
        assert not owner.is_dead()
        assert Lease("r", str(owner), 1, expires_at=2.0).is_held(1.0)
        process.kill()
        process.wait()
        assert owner.is_dead()
        assert not Lease("r", str(owner), 1, expires_at=2.0).is_held(1.0)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only /proc tells of zombies")
def test_a_zombie_is_dead() -> None:
    with another_process() as (owner, process):
        process.kill()
        deadline = time.monotonic() + 30
        while not owner.is_dead():
            assert time.monotonic() < deadline
        assert process.returncode is None


@pytest.mark.usefixtures("hides_processes")
def test_a_hidden_live_process_is_not_dead() -> None:
    with another_process() as (owner, process):
        assert not owner.is_dead()
        process.kill()
        process.wait()
        assert owner.is_dead()


@pytest.mark.usefixtures("hides_processes")
def test_a_live_process_of_another_user_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, signal: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    with another_process() as (owner, _):
        monkeypatch.setattr(os, "kill", refuse)
        is_dead = owner.is_dead()
        monkeypatch.undo()
    assert not is_dead


def test_another_process_with_the_same_pid_is_not_the_owner() -> None:
    own = Owner.new()
    assert not own.is_dead()
    assert Owner(own.pid, own.host, f"{own.born}1", own.claim).is_dead() or not own.born


def test_an_impossible_pid_counts_as_dead() -> None:
    assert Owner(2**80, Owner.new().host, "1", "1").is_dead()


def test_no_signal_is_sent_to_a_process_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, a signal 0 would be Ctrl-C."""
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: sent.append(pid))
    monkeypatch.setattr(sys, "platform", "win32")
    own = Owner.new()
    gone = Owner(2**22 + 1, own.host, own.born, own.claim)
    assert not gone.is_dead()
    assert sent == []


def test_a_lease_that_ended_before_the_boot_of_its_host_can_be_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("effectflow.checkpoint.lease.uptime", lambda: 60.0)
    lease = Lease.of("r", str(Owner.new()), 1, seconds=-3600, now=time.time())
    assert not lease.is_held(time.time())
    schema = schema_of(Lease)
    assert schema.read(schema.write(lease)) == lease
