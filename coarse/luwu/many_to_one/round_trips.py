# Pure: no MPI, threads, clock or environment.
"""How long to wait for an answer, by how long answers took (Jacobson and Karels, as RFC 6298 has it)."""

_SLOWEST_S = 1.0
_MOST_DOUBLINGS = 30


class RoundTrips:
    """The timeout of one hop. Stamps tell transmissions apart, so an answer is never taken for another's."""

    def __init__(self, first_s: float, *, least_s: float = 1e-3) -> None:
        """`first_s`: the timeout before anything was measured; `least_s`: what it never falls below."""
        self._least_s = least_s
        self._base_s = first_s
        self._smooth_s: float | None = None
        self._deviation_s = 0.0
        self._num_silences = 0
        self._timed: tuple[int, float] | None = None
        """The stamp whose answer is measured, and when it was sent."""

    @property
    def timeout_s(self) -> float:
        """How long to wait; it doubles with each silence that follows another."""
        calm_s = max(self._base_s, self._least_s)
        return min(calm_s * 2.0**self._num_silences, max(_SLOWEST_S, calm_s))

    def on_sent(self, stamp: int, now_s: float) -> None:
        """A transmission set out."""
        if self._timed is None:
            self._timed = stamp, now_s

    def on_echo(self, echo: int, now_s: float) -> None:
        """A heartbeat came."""
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
        """The timeout passed without a word."""
        self._num_silences = min(self._num_silences + 1, _MOST_DOUBLINGS)
        self._timed = None
