"""What the commands say about a run that ends with a failure that no resume retries."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.cli.conftest import Command

DESK = textwrap.dedent("""
    from pathlib import Path

    from effectflow import Do, bracket, effect, now, pure, step, workflow


    class Declined(Exception):
        pass


    @step
    @effect(errors=Declined)
    def charge(_: object, kind: str) -> str:
        if Path("open").exists():
            return "paid"
        if kind == "defect":
            raise ConnectionError("the bank is down")
        raise Declined("no money")


    @step
    @effect
    def note(_: object) -> None: ...


    @workflow
    def cleaned(kind: str) -> Do[object, Declined, str]:
        try:
            return (yield from charge(kind))
        finally:
            yield from note()


    @workflow
    def timed(kind: str) -> Do[object, Declined, str]:
        try:
            return (yield from charge(kind))
        finally:
            yield from now()


    @workflow
    def reported(kind: str) -> Do[object, Declined, str]:
        try:
            return (yield from charge(kind))
        except Exception:
            yield from note()
            raise


    @workflow
    def exited(kind: str) -> Do[object, Declined, str]:
        return (yield from charge(kind).on_exit(note()))


    @workflow
    def held(kind: str) -> Do[object, Declined, str]:
        return (yield from bracket(pure(1), lambda _: note(), lambda _: charge(kind)))


    @workflow
    def plain(kind: str) -> Do[object, Declined, str]:
        return (yield from charge(kind))


    @workflow
    def undone(kind: str) -> Do[object, Declined, str]:
        yield from note()
        try:
            return (yield from charge("failure"))
        except Declined:
            yield from note()
        return (yield from charge(kind))
""")

AGAIN = (
    "A resume fails again: charge; the run ends with its recorded failure, which a resume does not "
    "retry. To try again, start a new run with another id."
)
STANDING = ["cleaned", "reported", "exited", "held"]
SHOWN = {
    "failure": "Declined: no money",
    "defect": "ConnectionError: the bank is down",
}


@pytest.fixture(autouse=True)
def desk(folder: Path) -> None:
    (folder / "desk.py").write_text(DESK)


@pytest.mark.parametrize("kind", SHOWN)
@pytest.mark.parametrize("name", STANDING)
def test_a_failure_that_stands_is_not_offered_for_a_resume(
    effectflow: Command, folder: Path, name: str, kind: str
) -> None:
    failed = effectflow("run", f"desk:{name}", "--input", f'"{kind}"', "--run-id", "r")
    assert failed.code == 1
    assert AGAIN in failed.out
    assert "Resume it with" not in failed.out
    assert ("Traceback" in failed.err) == (kind == "defect")

    (folder / "open").touch()
    resumed = effectflow("resume", "r", "--app", "desk")
    assert resumed.code == 1
    assert f"Nothing was executed. The recorded failure is {SHOWN[kind]}\n" in resumed.out
    assert "0 steps run" in resumed.out
    assert AGAIN in resumed.out
    assert "Resume it with" not in resumed.out
    assert "Traceback" not in resumed.err


def test_plan_and_resume_say_the_same_about_a_failure_that_stands(effectflow: Command) -> None:
    effectflow("run", "desk:cleaned", "--input", '"failure"', "--run-id", "r")

    sentence = AGAIN.removeprefix("A resume ").removesuffix(".")
    assert sentence in effectflow("plan", "r", "--app", "desk").out
    assert sentence in effectflow("resume", "r", "--app", "desk").out


def test_json_names_what_recurs_and_no_command(effectflow: Command) -> None:
    ran = effectflow("run", "desk:cleaned", "--input", '"failure"', "--run-id", "r", "--json").json
    assert (ran["recurs"], ran["resume_with"]) == (["charge"], None)

    ran = effectflow("run", "desk:plain", "--input", '"failure"', "--run-id", "p", "--json").json
    assert (ran["recurs"], ran["resume_with"]) == ([], "effectflow resume p --app desk:plain")


@pytest.mark.parametrize("kind", SHOWN)
@pytest.mark.parametrize("name", ["plain", "undone", "timed"])
def test_a_failure_that_a_resume_retries_is_offered_for_it(
    effectflow: Command, folder: Path, name: str, kind: str
) -> None:
    failed = effectflow("run", f"desk:{name}", "--input", f'"{kind}"', "--run-id", "r")
    assert "fails again" not in failed.out
    assert f"Resume it with: effectflow resume r --app desk:{name}" in failed.out

    (folder / "open").touch()
    assert effectflow("resume", "r", "--app", "desk").code == 0
