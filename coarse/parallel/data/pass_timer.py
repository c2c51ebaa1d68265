"""Timer of one worker's steps: the end of forward, the times of gradients, and the whole step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coarse.protocol.clock import Clock

if TYPE_CHECKING:
    from coarse.client.link import DeviceLink


@dataclass(frozen=True, kw_only=True)
class RoundTimes:
    """Seconds of one round, from the end of a synchronisation to that of the next."""

    forward_s: float
    """Seconds from the end of the step to the first gradient: the loss and the data count as well."""
    backward_s: float
    """Seconds from the first gradient to the last; of several backward passes, from the first pass's."""
    step_s: float
    """Seconds of the whole round."""
    ready_s: tuple[float, ...]
    """Seconds from the first gradient until each bucket was complete."""


class PassTimer:
    """Timer that notes times in one round after the other, while it runs."""

    def __init__(self, clock: Clock, pace: float = 1.0, point: Callable[[str], None] | None = None) -> None:
        """Wait for the first round.

        `pace` is the seconds of the clock for each that passes here. `point` is told of the points of each round, timed
        or not; the clock then stands still in between.
        """
        self._clock = clock
        self._pace = pace
        self._point = point
        self._is_forward = True
        self.is_running = point is not None
        """True if times are wanted."""
        self._border_s = 0.0
        self._stepped_s: float | None = None
        self._first_s: float | None = None
        self._last_s: float | None = None
        self._ready_s: dict[int, float] = {}

    def begin_round(self) -> None:
        """Begin a round, which is to be timed."""
        self.is_running = True
        self._border_s = self._clock.now_s()
        self._stepped_s = self._first_s = self._last_s = None
        self._ready_s = {}

    def on_stepped(self) -> None:
        """Note that the optimizer has stepped."""
        self._is_forward = True
        if self._point is not None:
            self._point("step")
        if self._first_s is None:
            self._stepped_s = self._clock.now_s()

    def on_gradient(self, ago_s: float = 0.0) -> None:
        """Note a gradient, which backward has had for so long; late notes count from when it came."""
        if self._point is not None and self._is_forward:
            self._point("backward")
        self._is_forward = False
        since_s = self._border_s if self._stepped_s is None else self._stepped_s
        at_s = max(since_s, self._clock.now_s() - ago_s * self._pace)
        self._first_s = at_s if self._first_s is None else min(self._first_s, at_s)
        self._last_s = at_s if self._last_s is None else max(self._last_s, at_s)

    def on_bucket(self, index: int) -> None:
        """Note that a bucket is complete, by the gradient that came last."""
        if self._point is not None:
            self._point(f"bucket {index}")
            self.on_gradient()
        self._ready_s[index] = self._clock.now_s()

    def end_round(self, num_buckets: int) -> RoundTimes | None:
        """Return the times of the round; None if no step, no gradient or not every bucket was seen."""
        self.is_running = self._point is not None
        first_s, last_s, stepped_s = self._first_s, self._last_s, self._stepped_s
        if first_s is None or last_s is None or stepped_s is None or len(self._ready_s) != num_buckets:
            return None
        ready_s = (self._ready_s[index] - first_s for index in range(num_buckets))
        return RoundTimes(
            forward_s=first_s - stepped_s,
            backward_s=last_s - first_s,
            step_s=self._clock.now_s() - self._border_s,
            ready_s=tuple(max(0.0, at_s) for at_s in ready_s),
        )


def timer_of_points(link: "DeviceLink") -> PassTimer | None:
    """Return a timer for reducers without one if an emulated job is told of points; None in a live job."""
    return None if link.point is None else PassTimer(link.job_clock, link.pace, link.point)
