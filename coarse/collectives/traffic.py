# Pure: no MPI, threads, clock or environment.
"""Bytes that this worker sent to and received from workers of other nodes."""

from collections import defaultdict


class Traffic:
    """Counts by purpose; one thread counts, any may read."""

    def __init__(self) -> None:
        self._sent: dict[str, int] = defaultdict(int)
        self._received: dict[str, int] = defaultdict(int)

    def add(self, what: str, *, sent_bytes: int = 0, received_bytes: int = 0) -> None:
        """Note bytes that crossed between nodes."""
        self._sent[what] += sent_bytes
        self._received[what] += received_bytes

    def by_purpose(self) -> dict[str, tuple[int, int]]:
        """By purpose the bytes sent and received."""
        return {what: (self._sent[what], self._received[what]) for what in sorted(self._sent)}

    def total(self) -> tuple[int, int]:
        """Bytes sent and received, whatever for."""
        return sum(self._sent.values()), sum(self._received.values())
