# Pure: no MPI, threads, clock or environment.
"""What is known of a user's own model: its layers, and how each number of them was found."""

from dataclasses import dataclass, replace

from coarse.hardware.models import Model


@dataclass(frozen=True, kw_only=True)
class OwnModel:
    """A model and sentences on where its numbers come from, each with its basis."""

    model: Model
    notes: tuple[str, ...]

    def with_first_note(self, note: str) -> "OwnModel":
        """The same with a sentence before the others."""
        return replace(self, notes=(note, *self.notes))
