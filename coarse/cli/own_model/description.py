# Pure: no MPI, threads, clock or environment.
"""Description of a user's own model: its layers, and the source of each number."""

from dataclasses import dataclass, replace

from coarse.hardware.models import Model


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Times of each layer in a traced step, in the order of the model's layers."""

    forward: tuple[float, ...]
    """Seconds, or operations, of each layer in forward."""
    backward: tuple[float, ...]
    are_operations: bool = False
    """True if the trace has no durations, and its nodes state numbers of operations."""
    is_simulated: bool = False
    """True if the trace is of a prediction."""
    gpu: str
    """Name of the processor that computed."""
    source: str
    """Step and file of the times, and how they were counted."""


@dataclass(frozen=True, kw_only=True)
class OwnModel:
    """Model, and sentences on the sources of its numbers, each with its basis."""

    model: Model
    notes: tuple[str, ...]
    times: StepTimes | None = None
    """Times of the traced step, if the model is a trace."""

    def with_first_note(self, note: str) -> "OwnModel":
        """Return the model with a sentence before the others."""
        return replace(self, notes=(note, *self.notes))
