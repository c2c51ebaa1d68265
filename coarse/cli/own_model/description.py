# Pure: no MPI, threads, clock or environment.
"""Description of a user's own model: its layers, and how each number of them was found."""

from dataclasses import dataclass, replace

from coarse.hardware.models import Model


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Seconds of each layer of a model in a step that was traced; in the order of the model's layers."""

    forward: tuple[float, ...]
    """Seconds, or operations."""
    backward: tuple[float, ...]
    are_operations: bool = False
    """True if the trace has no durations, and its nodes say how many operations they are."""
    is_simulated: bool = False
    """True if the trace is of a prediction."""
    gpu: str
    """Name of the processor that computed."""
    source: str
    """Step and file, and what was counted."""


@dataclass(frozen=True, kw_only=True)
class OwnModel:
    """A model and sentences on where its numbers come from, each with its basis."""

    model: Model
    notes: tuple[str, ...]
    times: StepTimes | None = None
    """Times of the layers, if the model is a trace."""

    def with_first_note(self, note: str) -> "OwnModel":
        """Return the same with a sentence before the others."""
        return replace(self, notes=(note, *self.notes))
