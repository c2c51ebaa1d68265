"""Strategies whose gradients travel otherwise than as they are, or late, by all ways that buckets go."""

from dataclasses import dataclass

from coarse.strategy import Allreduce, By, Cast, Coarse, Feedback, Round, Strategy, TopK


@dataclass(frozen=True, kw_only=True)
class Halves(Coarse):
    """Casts to a half type."""

    element: str = "float16"

    def wire(self, tensor):
        return Cast(element=self.element)


@dataclass(frozen=True, kw_only=True)
class Sending(Strategy):
    """A share of each bucket, 0 for all values as they are, and sums that are `bound` rounds late."""

    bound: int = 0
    share: float = 0.0

    def wire(self, tensor):
        return Feedback(inner=TopK(share=self.share)) if self.share else None

    @property
    def lag(self):
        return self.bound


@dataclass(frozen=True, kw_only=True)
class Shared(Sending, Coarse):
    """Every other bucket by the workers."""

    hold_back: bool = False

    def decide(self, view):
        by = [By.WORKERS if bucket % 2 else By.DEVICES for bucket in range(len(view.nbytes))]
        return Round(by=tuple(by), hold_back=self.hold_back)


@dataclass(frozen=True, kw_only=True)
class ByWorkers(Sending, Allreduce):
    """All by the workers."""


@dataclass(frozen=True, kw_only=True)
class Sparse(Sending, Coarse):
    """All by the devices, without what is held back."""

    share: float = 1.0

    def wire(self, tensor):
        return TopK(share=self.share)
