"""Durable steps, journals and checkpoints of runs, and the contract of stores.

Most programs need few of these names, so their modules are imported on first use.
"""

from typing import TYPE_CHECKING

from effectflow.checkpoint.checkpoints import (
    CheckpointPolicy as CheckpointPolicy,
    Checkpoints as Checkpoints,
    HasCheckpoints as HasCheckpoints,
)
from effectflow.checkpoint.current_run import (
    patched as patched,
    run_context as run_context,
    save_now as save_now,
    started_version as started_version,
)
from effectflow.checkpoint.errors import CheckpointError as CheckpointError
from effectflow.checkpoint.step import (
    Step as Step,
    StepInfo as StepInfo,
    current_step as current_step,
    step as step,
    with_checkpointing as with_checkpointing,
)
from effectflow.checkpoint.values import Codec as Codec
from effectflow.effects.imports import lazy_names

if TYPE_CHECKING:
    from effectflow.checkpoint.checkpoint import (
        Checkpoint as Checkpoint,
        CompletedStep as CompletedStep,
        HistoryItem as HistoryItem,
        Metadata as Metadata,
        fold as fold,
    )
    from effectflow.checkpoint.current_life import replaying as replaying
    from effectflow.checkpoint.definition import Definition as Definition
    from effectflow.checkpoint.entries import (
        BeforeStep as BeforeStep,
        CancelRequested as CancelRequested,
        ChildEnded as ChildEnded,
        ChildStarted as ChildStarted,
        Completed as Completed,
        Entry as Entry,
        ErrorRecord as ErrorRecord,
        Failed as Failed,
        Finished as Finished,
        HeadState as HeadState,
        Interrupted as Interrupted,
        Local as Local,
        Paused as Paused,
        Published as Published,
        Resumed as Resumed,
        SetAside as SetAside,
        Signalled as Signalled,
        Started as Started,
        Suspended as Suspended,
        TimerFired as TimerFired,
        Value as Value,
        Waiting as Waiting,
    )
    from effectflow.checkpoint.errors import (
        ChangeRejected as ChangeRejected,
        CompensationFailed as CompensationFailed,
        CorruptCheckpoint as CorruptCheckpoint,
        CrashedTooOften as CrashedTooOften,
        DefinitionChanged as DefinitionChanged,
        LeaseLost as LeaseLost,
        MailboxFull as MailboxFull,
        NotSerializable as NotSerializable,
        OutcomeUnknown as OutcomeUnknown,
        RunBusy as RunBusy,
        RunCancelled as RunCancelled,
        RunConflict as RunConflict,
        RunEnded as RunEnded,
        RunNotEnded as RunNotEnded,
        RunNotFound as RunNotFound,
        RunPaused as RunPaused,
        SaveFailed as SaveFailed,
        StepInputChanged as StepInputChanged,
        StoreUnavailable as StoreUnavailable,
        UnsupportedVersion as UnsupportedVersion,
    )
    from effectflow.checkpoint.failures import RecordedDefect as RecordedDefect
    from effectflow.checkpoint.integrity import Encryption as Encryption, Seal as Seal
    from effectflow.checkpoint.journal_reader import (
        ExportedRun as ExportedRun,
        Verification as Verification,
        export_run as export_run,
        import_run as import_run,
        read_checkpoint as read_checkpoint,
        read_entries as read_entries,
        read_exported as read_exported,
        verify_run as verify_run,
        write_exported as write_exported,
    )
    from effectflow.checkpoint.lease import Lease as Lease, Owner as Owner
    from effectflow.checkpoint.observers import (
        AttemptBegan as AttemptBegan,
        CheckpointEvent as CheckpointEvent,
        CheckpointLoaded as CheckpointLoaded,
        CheckpointSaved as CheckpointSaved,
        EntryAppended as EntryAppended,
        LifeBegan as LifeBegan,
        LifeEnded as LifeEnded,
        Observer as Observer,
        RunBlocked as RunBlocked,
        RunResumed as RunResumed,
        RunWaits as RunWaits,
        StepSkipped as StepSkipped,
        SurroundingObserver as SurroundingObserver,
    )
    from effectflow.checkpoint.plan import (
        ResumePlan as ResumePlan,
        Unverified as Unverified,
        plan_resume as plan_resume,
    )
    from effectflow.checkpoint.rebuilding import rebuilt_run as rebuilt_run
    from effectflow.checkpoint.repair import (
        Repair as Repair,
        repair_run as repair_run,
        write_removed as write_removed,
    )
    from effectflow.checkpoint.run_info import (
        RunDetails as RunDetails,
        RunInfo as RunInfo,
        RunQuery as RunQuery,
        RunStatus as RunStatus,
        RunSummary as RunSummary,
    )
    from effectflow.checkpoint.store import (
        Batch as Batch,
        Changes as Changes,
        CheckpointStore as CheckpointStore,
        Claimed as Claimed,
        DueRuns as DueRuns,
        Message as Message,
        Queue as Queue,
        Record as Record,
        Remains as Remains,
        ServiceStore as ServiceStore,
        StoreFacts as StoreFacts,
        Taken as Taken,
        Transaction as Transaction,
        TransactionStore as TransactionStore,
        TransactionUndone as TransactionUndone,
        find_run as find_run,
    )
    from effectflow.checkpoint.transactional_step import transaction as transaction

if not TYPE_CHECKING:  # a type checker would take every name for one of this package
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "checkpoint": "Checkpoint CompletedStep HistoryItem Metadata fold",
            "checkpoints": "CheckpointPolicy Checkpoints HasCheckpoints",
            "current_life": "replaying",
            "current_run": "patched run_context save_now started_version",
            "definition": "Definition",
            "entries": (
                "BeforeStep CancelRequested ChildEnded ChildStarted Completed "
                "Entry ErrorRecord Failed Finished HeadState Interrupted Local Paused Published "
                "Resumed SetAside Signalled Started Suspended TimerFired Value Waiting"
            ),
            "errors": (
                "ChangeRejected CheckpointError CompensationFailed CorruptCheckpoint CrashedTooOften "
                "DefinitionChanged LeaseLost NotSerializable OutcomeUnknown RunBusy "
                "MailboxFull RunCancelled RunConflict RunEnded RunNotEnded RunNotFound "
                "RunPaused SaveFailed "
                "StepInputChanged StoreUnavailable UnsupportedVersion"
            ),
            "failures": "RecordedDefect",
            "integrity": "Encryption Seal",
            "journal_reader": (
                "ExportedRun Verification export_run import_run read_checkpoint "
                "read_entries read_exported verify_run write_exported"
            ),
            "lease": "Lease Owner",
            "observers": (
                "AttemptBegan CheckpointEvent CheckpointLoaded CheckpointSaved EntryAppended LifeBegan "
                "LifeEnded Observer RunBlocked RunResumed RunWaits StepSkipped SurroundingObserver"
            ),
            "plan": "ResumePlan Unverified plan_resume",
            "rebuilding": "rebuilt_run",
            "repair": "Repair repair_run write_removed",
            "run_info": "RunDetails RunInfo RunQuery RunStatus RunSummary",
            "step": "Step StepInfo current_step step with_checkpointing",
            "store": (
                "Batch Changes CheckpointStore Claimed DueRuns Message Queue Record Remains "
                "ServiceStore StoreFacts Taken Transaction TransactionUndone TransactionStore find_run"
            ),
            "transactional_step": "transaction",
            "values": "Codec",
        },
    )
