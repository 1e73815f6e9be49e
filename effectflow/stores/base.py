"""What an author of a store may use: the contract, the errors that it names, and the rules of all stores.

`docs/stores.md` builds a store from these names, and `effectflow.testing.store_conformance` checks one.

====================  ==================================================================================
the contract          `CheckpointStore` and `ServiceStore`, and the values that they take and return
who may write         `check_free`, `check_current`, `check_deletable`, `is_current`
what an append may    `check_first`, `check_length`, `check_kept`, `check_messages`
which runs are found  `select`, or `RunQuery.matches` for one run; `readable` skips damaged ones
summaries, leases     `to_json`, `summary_from_json`, `lease_from_json`
messages              `check_receives`, `check_room`, `size_in_mailbox`, `woken`, `due_if_unseen`,
                      `notifies_parent`
due runs              `choose` over a `DueIndex` of `Lane` s, within the `Usage` of limits
opening               `ReentrantStore`, to derive from
changes               `Announcements` to the watchers of this process
====================  ==================================================================================
"""

from effectflow.checkpoint.errors import (
    CorruptCheckpoint,
    LeaseLost,
    MailboxFull,
    RunBusy,
    RunEnded,
    RunNotFound,
    SaveFailed,
    StoreUnavailable,
)
from effectflow.checkpoint.lease import Lease, Owner
from effectflow.checkpoint.run_info import (
    RunDetails,
    RunInfo,
    RunQuery,
    RunStatus,
    RunSummary,
    due_at_once,
    notifies_parent,
)
from effectflow.checkpoint.store import (
    CANCEL,
    NOTICE,
    Batch,
    Changes,
    CheckpointStore,
    Claimed,
    DueRuns,
    Message,
    Queue,
    Record,
    Remains,
    ServiceStore,
    StoreFacts,
    Taken,
    wakes,
)
from effectflow.stores._base import ReentrantStore
from effectflow.stores._changes import Announcements
from effectflow.stores._due import Choice, DueIndex, Lane, Usage, choose
from effectflow.stores._rules import (
    check_current,
    check_deletable,
    check_first,
    check_free,
    check_kept,
    check_length,
    check_messages,
    check_receives,
    check_room,
    due_if_unseen,
    is_current,
    size_in_mailbox,
    woken,
)
from effectflow.stores._summaries import (
    UNREADABLE,
    lease_from_json,
    readable,
    select,
    summary_from_json,
    to_json,
)

__all__ = [
    "CANCEL",
    "NOTICE",
    "UNREADABLE",
    "Announcements",
    "Batch",
    "Changes",
    "CheckpointStore",
    "Choice",
    "Claimed",
    "CorruptCheckpoint",
    "DueIndex",
    "DueRuns",
    "Lane",
    "Lease",
    "LeaseLost",
    "MailboxFull",
    "Message",
    "Owner",
    "Queue",
    "Record",
    "ReentrantStore",
    "Remains",
    "RunBusy",
    "RunDetails",
    "RunEnded",
    "RunInfo",
    "RunNotFound",
    "RunQuery",
    "RunStatus",
    "RunSummary",
    "SaveFailed",
    "ServiceStore",
    "StoreFacts",
    "StoreUnavailable",
    "Taken",
    "Usage",
    "check_current",
    "check_deletable",
    "check_first",
    "check_free",
    "check_kept",
    "check_length",
    "check_messages",
    "check_receives",
    "check_room",
    "choose",
    "due_at_once",
    "due_if_unseen",
    "is_current",
    "lease_from_json",
    "notifies_parent",
    "readable",
    "select",
    "size_in_mailbox",
    "summary_from_json",
    "to_json",
    "wakes",
    "woken",
]
