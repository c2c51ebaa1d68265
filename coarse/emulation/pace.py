"""Emulated time and the wall clock that paces it."""

from coarse.protocol.clock import WallClock


class Pace:
    """Emulated seconds since an origin that all processes of a run share; wall seconds are `dilation` times as many."""

    def __init__(self, origin_s: float, dilation: float) -> None:
        self._clock = WallClock()
        self._origin_s = origin_s
        self.dilation = dilation

    def now_s(self) -> float:
        """Emulated seconds, as the wall clock has them."""
        return (self._clock.now_s() - self._origin_s) / self.dilation

    def wall_s_until(self, emulated_s: float) -> float:
        """Wall seconds from now until an emulated time; negative where it is past."""
        return self._origin_s + emulated_s * self.dilation - self._clock.now_s()
