"""Programs in processes of their own, forked from an interpreter that has imported effectflow already.

Starting an interpreter and importing take longer than most of these programs run. The tests of imports
and of the examples start interpreters of their own.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import multiprocessing.process
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType
from typing import IO, Any

ROOT = Path(__file__).parents[1]

PIPE = subprocess.PIPE


class Program:
    """A program, with what the tests use of `subprocess.Popen`.

    Parameters:
        arguments: `-c` and code, `-m` and a module, or a file; and the arguments of the program.
        cwd, env: its folder and its variables, by default those of this process.
        stdout, stderr: where it writes: by default where this process does, or `PIPE`.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdout: int = 1,
        stderr: int = 2,
    ) -> None:
        request = {
            "arguments": arguments,
            "folder": str(cwd or Path.cwd()),
            "environment": dict(os.environ if env is None else env),
        }
        self.returncode: int | None = None
        self._status, status = socket.socketpair()
        self.stdout, out = _reader(stdout)
        self.stderr, err = (None, out) if stderr == subprocess.STDOUT else _reader(stderr)
        message = json.dumps(request).encode()
        socket.send_fds(_interpreter(), [b"%10d" % len(message)], [status.fileno(), out, err])
        _interpreter().sendall(message)
        status.close()
        for passed in {out, err} - {1, 2}:
            os.close(passed)
        self.pid = int(self._status.recv(10))

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *raised: object) -> None:
        self.communicate()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            return self.wait()
        return self.returncode

    def wait(self, timeout: float = 120) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("the program", timeout)
            self.returncode = int(self._status.recv(10))
            self._status.close()
        return self.returncode

    def communicate(self, timeout: float = 120) -> tuple[str, str]:
        """Return the rest of what it writes, and wait until it has ended."""
        texts = [stream.read() if stream and not stream.closed else "" for stream in self._streams]
        for stream in filter(None, self._streams):
            stream.close()
        self.wait(timeout)
        return texts[0], texts[1]

    @property
    def _streams(self) -> tuple[IO[str] | None, IO[str] | None]:
        return self.stdout, self.stderr


def ran(
    arguments: Sequence[str], *, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and capture what it writes. `options` are those of `Program`.

    With `check`, raise CalledProcessError if it fails.
    """
    program = Program(arguments, stdout=PIPE, stderr=PIPE, **options)
    out, err = program.communicate()
    ended = subprocess.CompletedProcess([*arguments], program.wait(), out, err)
    if check:
        ended.check_returncode()
    return ended


def _reader(given: int) -> tuple[IO[str] | None, int]:
    """Return what reads the output of a program, if anything does, and the file that it writes to."""
    if given != PIPE:
        return None, os.open(os.devnull, os.O_WRONLY) if given == subprocess.DEVNULL else given
    read, write = os.pipe()
    return os.fdopen(read), write


@cache
def _interpreter() -> socket.socket:
    """Start the interpreter from which programs are forked. It ends with this process."""
    own, its = socket.socketpair()
    command = [sys.executable, "-m", "tests.programs", str(its.fileno())]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL
    )
    its.close()

    def end() -> None:
        own.close()
        process.wait()

    atexit.register(end)
    return own


# In the interpreter.


def forked(requests: socket.socket) -> Any:
    """Fork a process for each request, and return the request there."""
    while True:
        length, files, _, _ = socket.recv_fds(requests, 10, 3)
        if not length:
            os._exit(0)
        request = requests.recv(int(length), socket.MSG_WAITALL)
        if os.fork() == 0:
            status, *outputs = files
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            if pid := os.fork():
                for output in outputs:
                    os.close(output)
                os.close(1)
                os.close(2)
                os.write(status, b"%d" % pid)
                os.write(status, b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os._exit(0)
            os.close(status)
            for number, output in enumerate(outputs, 1):
                os.dup2(output, number)
            for output in outputs:
                os.close(output)
            return json.loads(request)
        for file in files:
            os.close(file)


def perform(arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """Do what an interpreter does with these arguments."""
    os.chdir(folder)
    # A process that the program spawns looks for it in the folder where it seems to have begun.
    process: Any = multiprocessing.process
    process.ORIGINAL_DIR = folder
    os.environ.clear()
    os.environ.update(environment)
    own = [path for path in environment.get("PYTHONPATH", "").split(":") if path]
    sys.path[:] = own + [path for path in sys.path if path != str(ROOT)]
    first, *rest = arguments
    match first:
        case "-c":
            code, *rest = rest
            sys.argv = ["-c", *rest]
            sys.path.insert(0, "")
            main = sys.modules["__main__"] = ModuleType("__main__")
            exec(compile(code, "<string>", "exec"), vars(main))
        case "-m":
            name, *rest = rest
            sys.argv = [name, *rest]
            sys.path.insert(0, folder)
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        case _:
            sys.argv = arguments
            sys.path.insert(0, str(Path(first).resolve().parent))
            runpy.run_path(first, run_name="__main__")


def import_all() -> None:
    """Import what most programs import, in part only when it is used."""
    import pydantic
    import typer.main

    for layer in ("builders", "checkpoint", "cli", "effects", "runs", "service"):
        package = importlib.import_module(f"effectflow.{layer}")
        for module in walk_packages(package.__path__, f"effectflow.{layer}."):
            importlib.import_module(module.name)
    typer.main.get_command(sys.modules["effectflow.cli.commands"].make_app())
    pydantic.TypeAdapter(int)
    gc.freeze()


if __name__ == "__main__":
    import_all()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    perform(**forked(socket.socket(fileno=int(sys.argv[1]))))
