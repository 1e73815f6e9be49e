from __future__ import annotations

import runpy
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path

import anyio
import pytest
from starlette.testclient import TestClient

from effectflow import Checkpoints, Do, RunStatus, par_traverse, spawn, workflow
from effectflow.checkpoint import RunConflict, Seal
from effectflow.checkpoint.messages import open_message
from effectflow.checkpoint.store import Message
from effectflow.checkpoint.values import Tree
from effectflow.service import App, Signal
from effectflow.stores import MemoryStore, SqliteStore
from effectflow.ui import create_app
from effectflow.ui.actions import ACTIONS
from effectflow.ui.notices import NOTICES
from tests.ui import orders
from tests.ui.orders import BROKEN, Declined, Order, Shop, app_on, approval, buy, fulfil, hold
from tests.ui.steered import Answered, Steering


@pytest.fixture
def steering(tmp_path: Path) -> Iterator[Steering]:
    BROKEN.clear()
    yield Steering(app_on(Checkpoints(SqliteStore(tmp_path / "runs.db"))))
    BROKEN.clear()


def failed(steering: Steering, run_id: str = "b1") -> None:
    BROKEN.add("charge")
    steering.do(buy, run_id)
    steering.drive(buy, run_id, RunStatus.FAILED)
    BROKEN.clear()


APPROVED = {"value/approved": "yes", "value/by": "emma"}


def waiting(steering: Steering, run_id: str = "f1") -> None:
    steering.do(fulfil, run_id)
    steering.drive(fulfil, run_id, RunStatus.SUSPENDED)


def went_to(answer: Answered, run_id: str, notice: str) -> None:
    assert answer.status == 303, answer.text
    assert answer.address == f"/run?id={run_id}&done={notice}"
    assert notice in NOTICES


def test_an_approval_is_answered_by_a_form_of_its_type(steering: Steering) -> None:
    waiting(steering)
    wrong = steering.act("signal", "f1", typed={"value/by": "emma"})
    assert wrong.status == 422
    assert "it is required" in wrong.text
    assert wrong.forms[0].typed["value/by"] == "emma"
    form = wrong.forms[0].typed | {"value/approved": "yes"}
    page = steering.show("/run/act/signal?id=f1")
    went_to(steering.submit(page, form), "f1", "signal")
    # The same form again sends nothing.
    went_to(steering.submit(page, form), "f1", "signal")
    output = steering.drive(fulfil, "f1", RunStatus.COMPLETED)
    assert output == "hat reserved, 5.50 paid, approved by emma"
    late = steering.submit(page, form)
    assert late.status == 409
    assert "completed" in late.text
    assert "emma" in late.text


def test_the_answer_of_a_second_person_is_not_kept_for_the_next_question(
    steering: Steering,
) -> None:
    waiting(steering)
    ann, emma = (steering.show("/run/act/signal?id=f1") for _ in range(2))
    yes, no = ({"value/approved": answer, "value/by": "me"} for answer in ("yes", "no"))
    went_to(steering.submit(ann, ann.forms[0].typed | yes), "f1", "signal")
    late = steering.submit(emma, emma.forms[0].typed | no)
    assert late.status == 409
    assert "somebody else has acted" in late.text
    assert "1 value was sent before" in late.text
    # Who has seen that may send another one.
    assert late.forms[0].typed["value/approved"] == "no"
    went_to(steering.submit(emma, late.forms[0].typed), "f1", "signal")


def test_what_a_run_has_not_taken_is_counted_without_being_opened(
    steering: Steering, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting(steering)
    went_to(steering.act("signal", "f1", typed=APPROVED), "f1", "signal")
    went_to(steering.act("cancel", "f1"), "f1", "cancel")
    opened: list[str] = []

    def opens(seal: Seal, run_id: str, message: Message) -> Tree:
        opened.append(message.topic)
        return open_message(seal, run_id, message)

    monkeypatch.setattr("effectflow.observe.mailbox.open_message", opens)
    text = steering.show("/run/act/signal?id=f1").text
    assert "1 value was sent before" in text
    assert "It was asked to cancel itself" in text
    assert opened == ["cancel"]


def test_what_is_typed_for_a_step_is_never_the_outcome_of_another(steering: Steering) -> None:
    BROKEN.update({"reserve", "charge"})
    steering.do(buy, "b1")
    steering.drive(buy, "b1", RunStatus.FAILED)
    ann, emma = (steering.show("/run/act/complete-step?id=b1") for _ in range(2))
    assert "b1:reserve" in ann.text
    went_to(steering.submit(ann, {"value": "hat reserved"}), "b1", "complete-step")
    steering.drive(buy, "b1", RunStatus.FAILED)
    late = steering.submit(emma, emma.forms[0].typed | {"value": "hat reserved"})
    assert late.status == 409
    assert "somebody else has acted" in late.text
    assert "b1:charge" in late.text


@workflow
def family(order: Order) -> Do[Shop, RunConflict, str]:
    yield from spawn(hold, order, run_id="child")
    return (yield from approval.wait()).by


def test_a_run_that_another_one_may_wait_for_is_not_offered_for_deletion() -> None:
    checkpoints = Checkpoints(MemoryStore())
    steering = Steering(App([family, hold], environment=Shop, checkpoints=checkpoints))
    steering.do(family, "f1")
    steering.drive(family, "f1", RunStatus.SUSPENDED)
    page = steering.show("/run/act/delete?id=child")
    assert page.status == 409
    assert "Run 'f1', which has spawned this one and may wait for its result" in page.text


def test_a_retry_shows_its_plan_first(steering: Steering) -> None:
    failed(steering)
    page = steering.show("/run/act/retry?id=b1")
    assert "no money" in page.text
    assert "Kept, and not run again reserve" in page.text
    assert "Runs again, because it has begun charge" in page.text
    went_to(steering.act("retry", "b1"), "b1", "retry")
    assert steering.drive(buy, "b1", RunStatus.COMPLETED) == "hat reserved, 5.50 paid"


def test_a_blocked_run_tells_both_operations_before_a_retry(steering: Steering) -> None:
    failed(steering)
    changed = Steering(orders.changed_app(steering.app.checkpoints))
    page = changed.show("/run/act/retry?id=b1")
    assert "It would be blocked again" in page.text
    assert "'reserve'" in page.text
    assert "'pack'" in page.text
    # A fork that the code would not continue is not offered.
    fork = changed.show("/run/act/fork?id=b1&at=4")
    assert (fork.status, fork.forms) == (409, [])
    assert "'pack'" in fork.text


def test_a_run_is_paused_unpaused_and_cancelled(steering: Steering) -> None:
    waiting(steering)
    went_to(steering.act("pause", "f1"), "f1", "pause")
    assert steering.status(fulfil, "f1") is RunStatus.PAUSED
    went_to(steering.act("unpause", "f1"), "f1", "unpause")
    assert "signal:approval" in steering.show("/run/act/cancel?id=f1").text
    went_to(steering.act("cancel", "f1"), "f1", "cancel")
    assert "Asked to cancel by" in steering.show("/run?id=f1").text
    # A pause would not stop that.
    assert "It was asked to cancel itself" in steering.show("/run/act/pause?id=f1").text
    assert steering.drive(fulfil, "f1", RunStatus.CANCELLED)
    assert steering.act("delete", "f1").address == "/?done=delete"
    assert steering.show("/run/act/delete?id=f1").status == 404


def test_a_step_is_completed_with_an_output_of_its_type(steering: Steering) -> None:
    failed(steering)
    page = steering.show("/run/act/complete-step?id=b1")
    assert "b1:charge" in page.text
    assert "price=Decimal('5.50')" in page.text
    went_to(steering.act("complete-step", "b1", typed={"value": "in cash"}), "b1", "complete-step")
    again = steering.submit(page, page.forms[0].typed | {"value": "twice"})
    assert again.status == 409
    assert steering.drive(buy, "b1", RunStatus.COMPLETED) == "hat reserved, in cash"


def test_a_step_fails_with_an_error_that_it_declares(steering: Steering) -> None:
    failed(steering)
    went_to(steering.act("fail-step", "b1", typed={"value": "no card"}), "b1", "fail-step")
    assert steering.drive(buy, "b1", RunStatus.FAILED)
    assert "no card" in steering.show("/run/act/retry?id=b1").text


def test_a_fork_has_another_output(steering: Steering) -> None:
    failed(steering)
    for place in ("99", "9" * 5000, "no step"):
        assert steering.show(f"/run/act/fork?id=b1&at={place}").status == 409
    assert "/run/history?id=b1" in steering.show("/run/act/fork?id=b1").html
    page = steering.show("/run/act/fork?id=b1&change=reserve")
    typed = page.forms[0].typed
    assert typed["change0"] == "hat reserved"
    typed |= {"change0": "cap reserved", "run_id": "b2"}
    went_to(steering.submit(page, typed), "b2", "fork")
    assert steering.drive(buy, "b2", RunStatus.COMPLETED) == "cap reserved, 5.50 paid"
    # The id is known, and this form did not suggest it.
    taken = steering.submit(page, typed)
    assert taken.status == 422
    assert taken.forms[0].typed["change0"] == "cap reserved"


def test_a_form_that_is_sent_twice_makes_one_run(steering: Steering) -> None:
    failed(steering)
    page = steering.show("/run/act/rerun?id=b1")
    made = page.forms[0].typed["run_id"]
    assert 'href="/start?like=b1"' in page.html
    went_to(steering.submit(page, page.forms[0].typed), made, "fork")
    went_to(steering.submit(page, page.forms[0].typed), made, "again")


def test_a_fork_has_another_input(steering: Steering) -> None:
    failed(steering)
    query = "&input=1"
    wrong = steering.act("fork", "b1", query=query, typed={"input/price": "much", "run_id": "b2"})
    assert wrong.status == 422
    assert wrong.forms[0].typed["input/price"] == "much"
    made = steering.act("fork", "b1", query=query, typed={"input/price": "7", "run_id": "b2"})
    went_to(made, "b2", "fork")
    assert steering.drive(buy, "b2", RunStatus.COMPLETED) == "hat reserved, 7 paid"


def test_dead_letters_are_retried_and_dropped_by_workers(tmp_path: Path) -> None:
    steering = Steering(orders.job_app(Checkpoints(SqliteStore(tmp_path / "runs.db"))))
    broken = orders.BROKEN_WORDS
    broken |= {"b", "c"}
    steering.do(orders.spelling, "j1", input=None)
    assert steering.drive(orders.spelling, "j1", RunStatus.COMPLETED).value == "A"
    broken.clear()
    went_to(steering.act("dead-letters", "j1", 0, typed={"keys": "b"}), "j1", "retry-items")
    steering.drive(orders.spelling, "j1", RunStatus.COMPLETED)
    unknown = steering.act("dead-letters", "j1", 1, typed={"keys": "9"})
    assert unknown.status == 422
    went_to(steering.act("dead-letters", "j1", 1), "j1", "drop")
    assert steering.drive(orders.spelling, "j1", RunStatus.COMPLETED).value == "AB"
    assert steering.show("/run/act/dead-letters?id=j1").status == 409


def test_the_crash_test_of_a_run_can_be_run(steering: Steering, tmp_path: Path) -> None:
    steering.do(hold, "h1")
    code = steering.show("/run/act/crash-test?id=h1").code
    assert "Order(item='hat', price=Decimal('5.50')" in code
    (tmp_path / "copied.py").write_text(code.replace("app.environment", "orders.Shop"))
    found = runpy.run_path(str(tmp_path / "copied.py"), {"orders": orders})
    anyio.run(found["test_it_ends_the_same_wherever_it_crashes"])


def test_what_is_not_possible_says_why_and_what_is(steering: Steering) -> None:
    """Each action answers for a run in each state with a page: its form, or the reason against it."""
    waiting(steering)
    failed(steering)
    steering.do(buy, "b2", "b3")
    steering.drive(buy, "b3", RunStatus.COMPLETED)
    steering.do(buy, "b4")
    for name, run_id in product(ACTIONS, ("f1", "b1", "b3", "b4")):
        page = steering.show(f"/run/act/{name}?id={run_id}")
        assert page.status in (200, 409)
        if page.status == 409:
            assert "What is possible" in page.text
            answer = steering.submit(page, {"value": "typed"})
            assert answer.status == 409
            assert "typed" in answer.text


def test_nothing_is_done_from_elsewhere_or_by_pages_that_only_show(steering: Steering) -> None:
    steering.do(buy, "b1")
    only_shown = [
        TestClient(create_app(steering.app)),
        TestClient(create_app(steering.app, steering.app, read_only=True)),
    ]
    addresses = [f"/run/act/{name}?id=b1" for name in [*ACTIONS, "unknown"]]
    for address in (*addresses, "/start?workflow=buy"):
        elsewhere = {"sec-fetch-site": "cross-site"}
        assert steering.pages.post(address, headers=elsewhere).status_code == 403
        for pages in only_shown:
            assert pages.get(address).status_code == 403
            assert pages.post(address).status_code == 403
    assert steering.status(buy, "b1") is RunStatus.PENDING
    assert steering.pages.get("/run/act/unknown?id=b1").status_code == 404


def test_a_form_that_is_too_large_is_refused(steering: Steering) -> None:
    steering.do(buy, "b1")
    for body in ("x" * 4_000_001, "a&" * 2_001):
        answer = steering.pages.post("/run/act/cancel?id=b1", content=body)
        assert answer.status_code == 413


def test_what_was_typed_stays_if_the_environment_cannot_be_made(steering: Steering) -> None:
    waiting(steering)

    def environment(_: Checkpoints) -> orders.Shop:
        raise ConnectionError("the bank does not answer")

    app = App([fulfil], environment=environment, checkpoints=steering.app.checkpoints)
    broken = Steering(app)
    typed = {"value/by": "emma", "value/approved": "yes", "~choice": "approval"}
    page = steering.show("/run/act/signal?id=f1")
    answer = broken.submit(page, typed)
    assert answer.status == 409
    assert "the bank does not answer" in answer.text
    assert "emma" in answer.text


def test_each_awaited_signal_and_each_declared_error_has_a_form(steering: Steering) -> None:
    steering = Steering(orders.choice_app(steering.app.checkpoints))
    steering.do(orders.choosing, "c1", input=None)
    steering.drive(orders.choosing, "c1", RunStatus.SUSPENDED)
    page = steering.show("/run/act/signal?id=c1")
    assert [form.typed["~choice"] for form in page.forms] == ["number", "name"]
    went_to(steering.submit(page, page.forms[0].typed | {"value": "5"}), "c1", "signal")
    steering.drive(orders.choosing, "c1", RunStatus.FAILED)
    page = steering.show("/run/act/fail-step?id=c1")
    [form] = [one for one in page.forms if "value/code" in one.typed]
    typed = form.typed | {"value/code": "7", "value/text": "no paper"}
    went_to(steering.submit(page, typed), "c1", "fail-step")
    steering.drive(orders.choosing, "c1", RunStatus.FAILED)
    assert "no paper" in steering.show("/run/act/retry?id=c1").text


RAISED: list[BaseException] = []
"""What the code of `raising` raises."""


@workflow
def raising(order: Order) -> Do[Shop, Declined, str]:
    reserved = yield from orders.reserve(order)
    for error in RAISED:
        raise error
    return f"{reserved}, {(yield from approval.wait()).by}"


@asynccontextmanager
async def not_closed(checkpoints: Checkpoints) -> AsyncGenerator[Shop]:
    yield Shop(checkpoints)
    raise SystemExit(4)


def test_what_code_raises_is_told_and_does_not_end_the_pages(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(MemoryStore())
    steering = Steering(App([raising], environment=Shop, checkpoints=checkpoints))
    steering.do(raising, "e1")
    steering.drive(raising, "e1", RunStatus.SUSPENDED)
    steering = Steering(App([raising], environment=not_closed, checkpoints=checkpoints))
    for error in (KeyError("size"), SystemExit(3), GeneratorExit("gone")):
        monkeypatch.setattr("tests.ui.test_actions.RAISED", [error])
        told = f"The code of the workflow raises {type(error).__name__}: {error}"
        forked = steering.show("/run/act/fork?id=e1&change=reserve")
        assert (forked.status, told in forked.text) == (409, True)
        for name in ("cancel", "signal"):
            page = steering.show(f"/run/act/{name}?id=e1")
            assert (page.status, told in page.text) == (200, True)
    # What is done stays done, and says so.
    went_to(steering.act("cancel", "e1"), "e1", "cancel")
    assert "could not be closed" in caplog.text


def test_a_run_is_cancelled_and_retried_also_if_the_environment_cannot_be_made(
    steering: Steering,
) -> None:
    failed(steering)

    def environment(_: Checkpoints) -> orders.Shop:
        raise ConnectionError("the bank does not answer")

    app = App([buy], environment=environment, checkpoints=steering.app.checkpoints)
    for action in ("retry", "cancel"):
        broken = Steering(app)
        assert "the bank does not answer" in broken.show(f"/run/act/{action}?id=b1").text
        went_to(broken.act(action, "b1"), "b1", action)


@workflow
async def slow(order: Order) -> str:
    await orders.reserve(order)
    await anyio.sleep(0)
    return (await approval.wait()).by


def test_a_signal_whose_type_is_not_known_says_so() -> None:
    """A replay does not run what a body awaits that is no effect, and so may not reach the wait."""
    steering = Steering(App([slow], environment=Shop, checkpoints=Checkpoints(MemoryStore())))
    steering.do(slow, "s1")
    steering.drive(slow, "s1", RunStatus.SUSPENDED)
    page = steering.show("/run/act/signal?id=s1")
    assert "The types of the values are not known" in page.text
    typed = page.forms[0].typed | {"value": '{"approved": true, "by": "emma"}'}
    went_to(steering.submit(page, typed), "s1", "signal")
    assert "Not taken yet" in steering.show("/run/act/signal?id=s1").text


@workflow
def asking(count: int) -> Do[Shop, Declined, list[str]]:
    return (yield from par_traverse(range(count), lambda one: Signal(f"s{one}", str).wait()))


def test_a_run_that_waits_for_many_signals_has_forms_for_some_and_links_to_others() -> None:
    steering = Steering(App([asking], environment=Shop, checkpoints=Checkpoints(MemoryStore())))
    steering.do(asking, "many", input=130)
    steering.drive(asking, "many", RunStatus.SUSPENDED)
    page = steering.show("/run/act/signal?id=many")
    assert len(page.forms) == 20
    assert "It waits for 110 more. The first 100 have a link below." in page.text
    assert page.html.count('<li><a href="/run/act/signal?id=many&amp;signal=') == 100
    assert "/run/act/signal?id=many&amp;signal=s119" in page.html
    page = steering.act("signal", "many", query="&signal=s129", typed={"value": "late"})
    went_to(page, "many", "signal")
