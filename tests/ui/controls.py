"""What a browser submits with the forms in some HTML, without a browser."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any


@dataclass
class SubmittedForm:
    """A form of a page, and what would be submitted with it."""

    action: str = ""
    typed: dict[str, str] = field(default_factory=dict[str, str])
    buttons: list[str] = field(default_factory=list[str])


class _Controls(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[SubmittedForm] = []
        self._textarea: str | None = None
        self._select: str | None = None
        self._is_button = False
        self._text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given: dict[str, Any] = dict(attrs)
        match tag:
            case "form":
                self.forms.append(SubmittedForm(given.get("action", "")))
            case "textarea":
                self._textarea, self._text = given["name"], ""
            case "select":
                self._select = given["name"]
            case "option" if self._select is not None:
                is_first = self._select not in self.forms[-1].typed
                if is_first or "selected" in given:
                    self.forms[-1].typed[self._select] = given.get("value", "")
            case "input" if given.get("type") in ("radio", "checkbox"):
                if "checked" in given:
                    self.forms[-1].typed[given["name"]] = given.get("value", "on")
            case "input":
                # A browser removes the line breaks of a line.
                text = given.get("value", "").replace("\r", "").replace("\n", "")
                self.forms[-1].typed[given["name"]] = text
            case "button":
                self._is_button, self._text = True, ""
            case _:
                pass

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea" and self._textarea is not None:
            text = self._text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\n")
            self.forms[-1].typed[self._textarea] = text.replace("\n", "\r\n")
            self._textarea = None
        elif tag == "select":
            self._select = None
        elif tag == "button" and self._is_button:
            if self.forms:
                self.forms[-1].buttons.append(self._text)
            self._is_button = False

    def handle_data(self, data: str) -> None:
        self._text += data


def forms_in(html: str) -> list[SubmittedForm]:
    """Return the forms of a page as they would be submitted."""
    found = _Controls()
    found.feed(html)
    return found.forms
