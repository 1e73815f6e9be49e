"""What pages say once something was done. Addresses name a notice, and have no text of their own."""

from __future__ import annotations

from collections.abc import Mapping

NOTICES: Mapping[str, str] = {
    "retry": "The next worker tries the run again.",
    "cancel": "The run was asked to cancel itself.",
    "pause": "The run is paused, or will be once its steps in progress end.",
    "unpause": "The next worker continues the run when it is due.",
    "signal": "The value was sent.",
    "complete-step": "The step is completed. The next worker continues the run.",
    "fail-step": "The step has failed. The next worker continues the run.",
    "fork": "This is the new run. The next worker drives it.",
    "again": "That form was sent before. This is the run that it made.",
    "start": "The run was submitted. The next worker drives it.",
    "retry-items": "The next worker maps the items again.",
    "drop": "The items were dropped. The next worker continues the run.",
    "delete": "The run was deleted.",
}
