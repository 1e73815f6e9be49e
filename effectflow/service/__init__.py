"""What keeps durable work going in a process: here, an orderly stop on signals."""

from effectflow.service.signals import StoppedBySignal, run_until_signal

__all__ = ["StoppedBySignal", "run_until_signal"]
