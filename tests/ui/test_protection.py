"""Who may see and use the pages, and what browsers are told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from effectflow import Checkpoints
from effectflow.service import App
from effectflow.stores import MemoryStore
from effectflow.ui import create_app
from effectflow.ui.protection import HEADERS
from effectflow.ui.site import Site

TOKEN = "a token of many characters"
PAUSE = "/service/pause?kind=queue&name=x&do=pause"


@pytest.fixture
def app() -> App[Any]:
    return App([], environment=lambda _: None, checkpoints=Checkpoints(MemoryStore()))


@pytest.fixture
def pages(app: App[Any]) -> Iterator[TestClient]:
    with TestClient(create_app(app, app, token=TOKEN), follow_redirects=False) as pages:
        yield pages


def test_a_token_in_the_url_is_exchanged_for_a_cookie(pages: TestClient) -> None:
    refused = pages.get("/run?id=a&token=wrong")
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"

    entered = pages.get("/run", params={"id": "a", "token": TOKEN})
    assert (entered.status_code, entered.headers["location"]) == (303, "/run?id=a")
    cookie = entered.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert TOKEN not in cookie
    assert pages.get("/").status_code == 200

    pages.cookies.clear()
    assert pages.get("/", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer \xe9".encode("latin-1")},
        {"cookie": "effectflow=\xe9; effectflow-0=x".encode("latin-1")},
        {"cookie": 'effectflow-="'},
    ],
)
@pytest.mark.parametrize("path", ["/", "/static/style.css", "/unknown"])
def test_without_the_token_nothing_is_shown(pages: TestClient, headers: Any, path: str) -> None:
    assert pages.get(path, headers=headers).status_code == 401


def test_a_forged_cookie_with_any_bytes_is_refused(pages: TestClient) -> None:
    name = pages.get("/", params={"token": TOKEN}).headers["set-cookie"].partition("=")[0]
    pages.cookies.clear()
    for text in ("", "x", "\xe9", '"\\377"'):
        headers: Any = {"cookie": f"{name}={text}".encode("latin-1")}
        assert pages.get("/", headers=headers).status_code == 401


@pytest.mark.parametrize("other", ['x={"a": "b c"}', "x", "x=a, b", "a b=1", 'x="', "\xfc=1"])
def test_unusual_cookies_of_other_programs_hide_nothing(pages: TestClient, other: str) -> None:
    own = pages.get("/", params={"token": TOKEN}).headers["set-cookie"].partition(";")[0]
    pages.cookies.clear()
    for cookies in (f"{other}; {own}", f"{own}; {other}"):
        headers: Any = {"cookie": cookies.encode("latin-1")}
        assert pages.get("/", headers=headers).status_code == 200


def test_the_redirection_leads_to_no_other_host(pages: TestClient) -> None:
    entered = pages.get("http://testserver//evil.example/x", params={"token": TOKEN})
    assert entered.headers["location"] == "/evil.example/x"


def test_tokens_of_two_ports_do_not_replace_each_other(app: App[Any], pages: TestClient) -> None:
    pages.get("/", params={"token": TOKEN})
    with TestClient(create_app(app, token="another token of it"), cookies=pages.cookies) as other:
        other.get("/", params={"token": "another token of it"})
        assert other.get("/").status_code == 200
        assert TestClient(pages.app, cookies=other.cookies).get("/").status_code == 200


@pytest.mark.parametrize(
    ("method", "headers", "is_answered"),
    [
        ("GET", {"sec-fetch-site": "none"}, True),
        ("GET", {"sec-fetch-site": "same-origin"}, True),
        ("GET", {"sec-fetch-site": "cross-site"}, False),
        ("GET", {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}, False),
        (
            "GET",
            {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
            | {"sec-fetch-dest": "iframe"},
            False,
        ),
        (
            "GET",
            {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
            | {"sec-fetch-dest": "document"},
            True,
        ),
        (
            "POST",
            {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
            | {"sec-fetch-dest": "document"},
            False,
        ),
        ("POST", {"sec-fetch-site": "same-site"}, False),
        ("POST", {"sec-fetch-site": "same-origin"}, True),
        ("POST", {"origin": "http://testserver"}, True),
        ("POST", {"origin": "http://testserver:81"}, False),
        ("POST", {"origin": "https://evil.example"}, False),
        ("POST", {"origin": "null"}, False),
        ("POST", {"origin": "http://["}, False),
        ("GET", {"origin": "https://evil.example"}, True),
        ("POST", {}, True),
    ],
)
def test_other_sites_only_open_pages(
    app: App[Any], method: str, headers: dict[str, str], is_answered: bool
) -> None:
    with TestClient(create_app(app, app), follow_redirects=False) as pages:
        answer = pages.request(method, PAUSE, headers=headers)
        assert answer.status_code == (403 if not is_answered else 303 if method == "POST" else 200)
        assert ("paused" in pages.get("/service").text) == (method == "POST" and is_answered)


@pytest.mark.parametrize(
    ("host", "is_answered"),
    [
        ("127.0.0.1", True),
        ("localhost:8643", True),
        ("LOCALHOST", True),
        ("[::1]:8643", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example:8643", False),
        ("evil@localhost", True),
        ("localhost@evil.example", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_only_named_hosts_are_answered(app: App[Any], host: str, is_answered: bool) -> None:
    hosts = ("127.0.0.1", "localhost", "::1")
    with TestClient(create_app(app, hosts=hosts)) as pages:
        answer = pages.get("/", headers={"host": host})
        assert answer.status_code == (200 if is_answered else 421)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 200),
        ("/unknown", 404),
        ("/run", 400),
        ("/run?id=unknown", 404),
        ("/service/pause?kind=queue&name=x", 403),
        ("/static/style.css", 200),
        ("/static/../application.py", 404),
        ("/static/%2e%2e/application.py", 404),
        ("/static", 404),
    ],
)
def test_each_answer_has_the_headers(path: str, status: int) -> None:
    with TestClient(create_app(Checkpoints(MemoryStore()))) as pages:
        answer = pages.get(path)
        head = pages.request("OPTIONS", path)
    assert answer.status_code == status
    for name, text in HEADERS.items():
        assert answer.headers[name] == text
        assert head.headers[name] == text
    is_file = status == 200 and path.startswith("/static")
    assert answer.headers["cache-control"] == ("no-cache" if is_file else "no-store")


def test_an_error_of_the_pages_shows_no_details(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("the secret of the code")

    def exits(*_: object, **__: object) -> None:
        raise SystemExit("what the code says")

    with TestClient(create_app(Checkpoints(MemoryStore()))) as pages:
        monkeypatch.setattr("effectflow.ui.store_page.read_overview", fails)
        monkeypatch.setattr("effectflow.ui.service_page.Page", fails)
        answers = {path: pages.get(path) for path in ("/store", "/service")}
        render = Site.render
        monkeypatch.setattr("effectflow.ui.site.Site.render", fails)
        answers["/"] = pages.get("/")
        monkeypatch.setattr("effectflow.ui.site.Site.render", render)
        monkeypatch.setattr("effectflow.ui.service_page.Page", exits)
        assert "see the log of their server" in pages.get("/service").text.lower()
    # What a store raises is told as its problem, and what the pages do wrong only in the log.
    assert [answer.status_code for answer in answers.values()] == [503, 500, 500]
    for path, answer in answers.items():
        assert "Traceback" not in answer.text
        assert ("secret" in answer.text) == (path == "/store")
        assert answer.headers["content-security-policy"] == HEADERS["content-security-policy"]
    assert "the secret of the code" in caplog.text
    assert "what the code says" in caplog.text


def test_a_form_is_handled_once_even_for_one_who_asks_for_a_stream(app: App[Any]) -> None:
    with TestClient(create_app(app, app), follow_redirects=False) as pages:
        answer = pages.post(PAUSE, headers={"accept": "text/event-stream"})
        assert answer.status_code == 303
