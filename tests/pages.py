"""README.md and the pages of docs/, and the Python code in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]

PYTHON_BLOCK = re.compile(
    r"^(?P<skipped><!-- no-test: \S[^\n]*-->\n\n?)?```python\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


def examples(page: Path) -> Iterator[str]:
    """Return the python blocks of a page, each moved down to its lines in the page.

    So a traceback and `inspect.getsource` point to the page itself.
    """
    text = page.read_text(encoding="utf-8")
    for block in PYTHON_BLOCK.finditer(text):
        if not block["skipped"]:
            yield "\n" * text.count("\n", 0, block.start("code")) + block["code"]
