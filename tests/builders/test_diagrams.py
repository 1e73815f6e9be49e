"""Labels are shown unchanged, and cannot change the structure of a diagram."""

from __future__ import annotations

import re

from hypothesis import example, given, strategies as st

from effectflow.builders.diagrams import Arrow, Box, Diagram, to_mermaid

MERMAID_TEXT = re.compile(r'"((?:[^"#<>`\\\n]|#\d+;|<br/>)*)"')
"""Quoted text that Mermaid, HTML and Markdown do not interpret."""


def diagram(label: str) -> Diagram:
    inside = (Box("c", label, mark="current"), Box("d", label))
    boxes = (Box("a", label), Box("b", label, inside=inside), Box("e", shape="end"))
    return Diagram(boxes, (Arrow("a", "b", label), Arrow("b", "e")))


def shown_by_mermaid(text: str) -> str:
    lines = text.split("<br/>")
    return "\n".join(re.sub(r"#(\d+);", lambda found: chr(int(found[1])), line) for line in lines)


@given(st.text(min_size=1))
@example('say "yes"')
@example('"]; n9 --> n0; n1["')
@example('"]; n9 -> n0 [label="')
@example("end")
@example("back\\slash\\ \\N \\G")
@example("<b>bold</b> &amp; &#34; #34;")
@example("`**markdown**` %%{init: {}}%%")
@example('click n0 "javascript:alert(1)"')
@example("two\nlines")
def test_no_label_can_change_a_diagram(label: str) -> None:
    shown, plain = (to_mermaid(diagram(text)) for text in (label, "plain"))
    assert MERMAID_TEXT.sub('""', shown) == MERMAID_TEXT.sub('""', plain)


@given(st.text(min_size=1))
@example("<b>bold</b> &amp; \\N #34;\nand more")
def test_labels_are_shown_unchanged(label: str) -> None:
    [_, mermaid] = to_mermaid(diagram(label)).split('n0["')
    assert shown_by_mermaid(mermaid.partition('"]\n')[0]) == label


def test_lines_of_a_mermaid_label_are_not_list_items() -> None:
    labels = [*(f"{mark} first" for mark in ("1.", "12.", "-", " -", "+")), "a\n- b"]

    for label in labels:
        [_, shown] = to_mermaid(diagram(label)).split('n0["')
        lines = shown.partition('"]\n')[0].split("<br/>")
        assert not any(re.match(r" *(\d+\.|[-+]) ", line) for line in lines)
