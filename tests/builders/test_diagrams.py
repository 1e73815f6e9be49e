"""Labels are shown unchanged, and cannot change the structure of a diagram."""

from __future__ import annotations

import re

from hypothesis import example, given, strategies as st

from effectflow.builders.diagrams import Arrow, Box, Diagram, to_dot, to_mermaid

MERMAID_TEXT = re.compile(r'"((?:[^"#<>`\\\n]|#\d+;|<br/>)*)"')
"""Quoted text that Mermaid, HTML and Markdown do not interpret."""

DOT_TEXT = re.compile(r'"((?:[^"\\\n]|\\\\|\\"|\\n)*)"')
"""A quoted string of DOT, without escapes that expand to names."""


def diagram(label: str) -> Diagram:
    inside = (Box("c", label, mark="current"), Box("d", label))
    boxes = (Box("a", label), Box("b", label, inside=inside), Box("e", shape="end"))
    return Diagram(label, boxes, (Arrow("a", "b", label), Arrow("b", "e")))


def shown_by_mermaid(text: str) -> str:
    lines = text.split("<br/>")
    return "\n".join(re.sub(r"#(\d+);", lambda found: chr(int(found[1])), line) for line in lines)


def shown_by_graphviz(text: str) -> str:
    escapes = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
    return re.sub(r"\\.", lambda found: escapes[found[0]], text).replace("&amp;", "&")


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
    for draw, text in ((to_mermaid, MERMAID_TEXT), (to_dot, DOT_TEXT)):
        assert text.sub('""', draw(diagram(label))) == text.sub('""', draw(diagram("plain")))


@given(st.text(min_size=1))
@example("<b>bold</b> &amp; \\N #34;\nand more")
def test_labels_are_shown_unchanged(label: str) -> None:
    [_, mermaid] = to_mermaid(diagram(label)).split('n0["')
    assert shown_by_mermaid(mermaid.partition('"]\n')[0]) == label

    # Control characters become blanks for Graphviz.
    found = DOT_TEXT.search(to_dot(diagram(label)).partition("n0 [label=")[2])
    assert found is not None
    assert shown_by_graphviz(found[1]) == re.sub("[\r\0]", " ", label)


def test_lines_of_a_mermaid_label_are_not_list_items() -> None:
    labels = [*(f"{mark} first" for mark in ("1.", "12.", "-", " -", "+")), "a\n- b"]

    for label in labels:
        [_, shown] = to_mermaid(diagram(label)).split('n0["')
        lines = shown.partition('"]\n')[0].split("<br/>")
        assert not any(re.match(r" *(\d+\.|[-+]) ", line) for line in lines)


def test_dot_arrows_end_at_the_borders_of_outer_boxes() -> None:
    dot = to_dot(diagram("x"))

    assert 'n0 -> n2 [label="x", lhead=cluster_n1];' in dot
    assert "n3 -> n4 [ltail=cluster_n1];" in dot
