"""Durable steps, journals and checkpoints of runs, and the contract of stores.

Most programs need few of these names, so their modules are imported with their first use.
"""

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
from effectflow.effects.lazy_names import lazy_names

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
        Published,
        Resumed,
        Signalled,
        SourceEnd,
        Started,
        Suspended,
        Waiting,
    )
    from effectflow.checkpoint.errors import (
        CompensationFailed,
        CorruptCheckpoint,
        CrashedTooOften,
        DefinitionChanged,
        LeaseLost,
        NotSerializable,
        OutcomeUnknown,
        RunBusy,
        RunCancelled,
        RunConflict,
        RunEnded,
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
        Changes,
        CheckpointStore,
        Claimed,
        DueRuns,
        FallsBack,
        KeepsHistory,
        Limit,
        ListsDamagedRuns,
        Message,
        Record,
        Remains,
        RunInfo,
        RunQuery,
        RunStatus,
        RunSummary,
        Salvages,
        Taken,
    )

__all__ = [
    "Arguments",
    "BeforeStep",
    "BranchesEnded",
    "CancelRequested",
    "Changes",
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
    "Claimed",
    "Codec",
    "CompensationFailed",
    "Completed",
    "CompletedStep",
    "CorruptCheckpoint",
    "CrashedTooOften",
    "CycleDetected",
    "Decided",
    "Definition",
    "DefinitionChanged",
    "DueRuns",
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
    "Limit",
    "ListsDamagedRuns",
    "Message",
    "Metadata",
    "NodeEnded",
    "NodeStarted",
    "NotSerializable",
    "Observer",
    "OutcomeUnknown",
    "Owner",
    "Published",
    "Record",
    "RecordedDefect",
    "Remains",
    "Repair",
    "ResumePlan",
    "Resumed",
    "RunBusy",
    "RunCancelled",
    "RunConflict",
    "RunEnded",
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
    "Signalled",
    "SourceEnd",
    "Started",
    "Step",
    "StepInfo",
    "StepInputChanged",
    "StepSkipped",
    "StoreUnavailable",
    "Suspended",
    "Taken",
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

if not TYPE_CHECKING:  # a type checker would take every name for one of this package
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "checkpoint": "Checkpoint CompletedStep HistoryItem Metadata fold",
            "definition": "Definition",
            "entries": (
                "Arguments BeforeStep BranchesEnded CancelRequested ChildEnded ChildStarted "
                "Completed Decided Entry ErrorRecord Failed Finished HeadState Interrupted "
                "Published Resumed Signalled SourceEnd Started Suspended Waiting"
            ),
            "errors": (
                "CompensationFailed CorruptCheckpoint CrashedTooOften DefinitionChanged LeaseLost "
                "NotSerializable OutcomeUnknown RunBusy RunCancelled RunConflict RunEnded "
                "RunNotEnded RunNotFound SaveFailed StepInputChanged StoreUnavailable "
                "UnsupportedVersion"
            ),
            "failures": "RecordedDefect",
            "integrity": "Encryption Seal",
            "journal_reader": (
                "ExportedRun Verification export_run import_run read_checkpoint read_entries "
                "read_exported verify_run write_exported"
            ),
            "lease": "Lease Owner",
            "observers": (
                "CheckpointEvent CheckpointLoaded CheckpointSaved CycleDetected EdgeEvaluated "
                "EntryAppended NodeEnded NodeStarted Observer RunResumed StepSkipped "
                "TransitionEnded TransitionStarted"
            ),
            "plan": "ResumePlan Unverified plan_resume",
            "repair": "Repair repair_run write_removed",
            "store": (
                "Changes CheckpointStore Claimed DueRuns FallsBack KeepsHistory Limit "
                "ListsDamagedRuns Message Record Remains RunInfo RunQuery RunStatus "
                "RunSummary Salvages Taken"
            ),
        },
    )
