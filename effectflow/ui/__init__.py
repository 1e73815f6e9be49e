"""Pages: see and steer what runs, in a browser.

`create_app(checkpoints)` returns an ASGI application that shows the runs of a store; with an `App`, it
also changes and starts them. `effectflow ui` serves it. It needs the extra `effectflow[ui]`.
"""

from __future__ import annotations

from effectflow.effects.imports import needs

with needs("ui"):
    from effectflow.ui.application import create_app as create_app
