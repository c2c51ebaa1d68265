# Pure: no MPI, threads, clock or environment.
"""Timeouts of answers, computed from earlier answers' times (Jacobson and Karels, as in RFC 6298)."""

_SLOWEST_S = 1.0
_MOST_DOUBLINGS = 30


class RoundTrips:
    """Timeout of one hop; stamps tell transmissions apart, so an answer is never taken for another's."""

    def __init__(self, first_s: float, *, least_s: float = 1e-3) -> None:
        """Start with a timeout of `first_s` before any measurement; it never falls below `least_s`."""
        self._least_s = least_s
        self._base_s = first_s
        self._smooth_s: float | None = None
        self._deviation_s = 0.0
        self._num_silences = 0
        self._timed: tuple[int, float] | None = None
        """Stamp whose answer is measured, and the time when it was sent."""

    @property
    def timeout_s(self) -> float:
        """Seconds to wait for an answer; they double with each silence that follows another."""
        calm_s = max(self._base_s, self._least_s)
        return min(calm_s * 2.0**self._num_silences, max(_SLOWEST_S, calm_s))

    def on_sent(self, stamp: int, now_s: float) -> None:
        """Note that a transmission set out."""
        if self._timed is None:
            self._timed = stamp, now_s

    def on_echo(self, echo: int, now_s: float) -> None:
        """Note that a heartbeat came."""
        if self._timed is None or echo < self._timed[0]:
            return
        took_s, self._timed = now_s - self._timed[1], None
        self._num_silences = 0
        if self._smooth_s is None:
            self._smooth_s, self._deviation_s = took_s, took_s / 2
        else:
            self._deviation_s += (abs(took_s - self._smooth_s) - self._deviation_s) / 4
            self._smooth_s += (took_s - self._smooth_s) / 8
        self._base_s = self._smooth_s + 4 * self._deviation_s

    def on_silence(self) -> None:
        """Note that the timeout passed without an answer."""
        self._num_silences = min(self._num_silences + 1, _MOST_DOUBLINGS)
        self._timed = None
