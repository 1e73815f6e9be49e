"""Durable steps, journals and checkpoints of runs, and the contract of stores."""

from importlib import import_module
from typing import TYPE_CHECKING

from effectflow.checkpoint.checkpoints import CheckpointPolicy, Checkpoints, HasCheckpoints
from effectflow.checkpoint.errors import CheckpointError
from effectflow.checkpoint.step import (
    Step,
    StepInfo,
    current_step,
    run_context,
    save_now,
    started_version,
    step,
    step_info,
    with_checkpointing,
)
from effectflow.checkpoint.values import Codec

if TYPE_CHECKING:
    from effectflow.checkpoint.checkpoint import (
        Checkpoint,
        CompletedStep,
        HistoryItem,
        Metadata,
        fold,
    )
    from effectflow.checkpoint.definition import Definition
    from effectflow.checkpoint.entries import (
        Arguments,
        BeforeStep,
        BranchesEnded,
        CancelRequested,
        ChildEnded,
        ChildStarted,
        Completed,
        Decided,
        Entry,
        ErrorRecord,
        Failed,
        Finished,
        HeadState,
        Interrupted,
        Resumed,
        SourceEnd,
        Started,
        Waiting,
    )
    from effectflow.checkpoint.errors import (
        CorruptCheckpoint,
        DefinitionChanged,
        LeaseLost,
        NotSerializable,
        OutcomeUnknown,
        RunBusy,
        RunCancelled,
        RunConflict,
        RunNotEnded,
        RunNotFound,
        SaveFailed,
        StepInputChanged,
        StoreUnavailable,
        UnsupportedVersion,
    )
    from effectflow.checkpoint.failures import RecordedDefect
    from effectflow.checkpoint.integrity import Encryption, Seal
    from effectflow.checkpoint.journal_reader import (
        ExportedRun,
        Verification,
        export_run,
        import_run,
        read_checkpoint,
        read_entries,
        read_exported,
        verify_run,
        write_exported,
    )
    from effectflow.checkpoint.lease import Lease, Owner
    from effectflow.checkpoint.observers import (
        CheckpointEvent,
        CheckpointLoaded,
        CheckpointSaved,
        CycleDetected,
        EdgeEvaluated,
        EntryAppended,
        NodeEnded,
        NodeStarted,
        Observer,
        RunResumed,
        StepSkipped,
        TransitionEnded,
        TransitionStarted,
    )
    from effectflow.checkpoint.plan import ResumePlan, Unverified, plan_resume
    from effectflow.checkpoint.repair import Repair, repair_run, write_removed
    from effectflow.checkpoint.store import (
        CheckpointStore,
        FallsBack,
        KeepsHistory,
        ListsDamagedRuns,
        Record,
        Remains,
        RunInfo,
        RunQuery,
        RunStatus,
        RunSummary,
        Salvages,
    )

__all__ = [
    "Arguments",
    "BeforeStep",
    "BranchesEnded",
    "CancelRequested",
    "Checkpoint",
    "CheckpointError",
    "CheckpointEvent",
    "CheckpointLoaded",
    "CheckpointPolicy",
    "CheckpointSaved",
    "CheckpointStore",
    "Checkpoints",
    "ChildEnded",
    "ChildStarted",
    "Codec",
    "Completed",
    "CompletedStep",
    "CorruptCheckpoint",
    "CycleDetected",
    "Decided",
    "Definition",
    "DefinitionChanged",
    "EdgeEvaluated",
    "Encryption",
    "Entry",
    "EntryAppended",
    "ErrorRecord",
    "ExportedRun",
    "Failed",
    "FallsBack",
    "Finished",
    "HasCheckpoints",
    "HeadState",
    "HistoryItem",
    "Interrupted",
    "KeepsHistory",
    "Lease",
    "LeaseLost",
    "ListsDamagedRuns",
    "Metadata",
    "NodeEnded",
    "NodeStarted",
    "NotSerializable",
    "Observer",
    "OutcomeUnknown",
    "Owner",
    "Record",
    "RecordedDefect",
    "Remains",
    "Repair",
    "ResumePlan",
    "Resumed",
    "RunBusy",
    "RunCancelled",
    "RunConflict",
    "RunInfo",
    "RunNotEnded",
    "RunNotFound",
    "RunQuery",
    "RunResumed",
    "RunStatus",
    "RunSummary",
    "Salvages",
    "SaveFailed",
    "Seal",
    "SourceEnd",
    "Started",
    "Step",
    "StepInfo",
    "StepInputChanged",
    "StepSkipped",
    "StoreUnavailable",
    "TransitionEnded",
    "TransitionStarted",
    "UnsupportedVersion",
    "Unverified",
    "Verification",
    "Waiting",
    "current_step",
    "export_run",
    "fold",
    "import_run",
    "plan_resume",
    "read_checkpoint",
    "read_entries",
    "read_exported",
    "repair_run",
    "run_context",
    "save_now",
    "started_version",
    "step",
    "step_info",
    "verify_run",
    "with_checkpointing",
    "write_exported",
    "write_removed",
]

_HOMES = (
    "entries",
    "errors",
    "checkpoint",
    "store",
    "plan",
    "observers",
    "journal_reader",
    "repair",
    "definition",
    "lease",
    "integrity",
    "failures",
)
"""The modules of the other names. They are imported when used, because most programs need few of them."""


if not TYPE_CHECKING:  # a type checker would take every name for one of this package

    def __getattr__(name: str) -> object:
        if name in __all__:
            for home in _HOMES:
                module = import_module(f"{__name__}.{home}")
                if hasattr(module, name):
                    return getattr(module, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
