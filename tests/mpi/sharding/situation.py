"""What happens in real training beside plain steps: each told once, for one process and for many alike."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from tests.support.references import MakeOptimizer, Net, adamw

Story = Callable[..., None]
BLOCK = "blocks.1.first.weight"
"""A parameter whose shards all workers hold."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """A story, the models it needs, and what their sharding differs in."""

    story: Story
    make: Callable[[], nn.Module] = Net
    others: tuple[Callable[[], nn.Module], ...] = ()
    """Models trained beside the first."""
    make_optimizer: MakeOptimizer = adamw
    options: tuple[tuple[str, object], ...] = ()


SITUATIONS: dict[str, Situation] = {}
"""By name, those of the modules that were imported."""


def situation(**fields: object) -> Callable[[Story], Story]:
    """List a story as a situation under its name."""

    def listed(story: Story) -> Story:
        SITUATIONS[story.__name__] = Situation(story=story, **fields)
        return story

    return listed
