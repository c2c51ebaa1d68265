"""History of each line of a checked pool, and the table of the program's places that stored.

It stands in the pool's file behind the data, where all users see it at once: a checked run is one on this machine, or
on hosts whose caches are coherent. It takes 1.5 times the data's bytes and more, so checked pools are small.

[Note: who knows of a store] A user may load a line while another has stored into it and not flushed it yet, and see the
old value: it cannot know better. It is wrong only where it does know: it has loaded something that the other flushed
after that store. So each line keeps the knowledge of all users that its last writer had when it flushed (a vector
clock, Fidge and Mattern), and a user that fetches the line knows as much from then on.
"""

from dataclasses import dataclass

import numpy as np

from coarse.protocol.units import LINE_BYTES

MOST_USERS = 16
"""Number of processes that may use one checked pool."""
_SITES_EACH = 64
_SITE_BYTES = 240
_LINE = np.dtype(
    [
        ("stored_s", "f8"), ("written_s", "f8"), ("version", "u4"), ("store_clock", "u4"),
        ("stored_by", "u2"), ("written_by", "u2"), ("stored_at", "u2"), ("written_at", "u2"),
        ("clock", "u4", (MOST_USERS,)),
    ]
)  # fmt: skip
"""Record of a line. `stored_by` is the user with stores that it has not flushed, from 1; 0 where there is none.
`version` counts the lines written back, `clock` is the last writer's knowledge then."""


def history_bytes(data_bytes: int) -> int:
    """Return the bytes of the history of so much data."""
    return data_bytes // LINE_BYTES * _LINE.itemsize + MOST_USERS * _SITES_EACH * _SITE_BYTES


@dataclass(frozen=True)
class Written:
    """Place in a user's program at which something was done."""

    user: int
    site: str


class History:
    """Records of the lines in the shared file, as one user sees them."""

    def __init__(self, memory: np.ndarray, data_bytes: int) -> None:
        """Take `memory`, which is (history_bytes(data_bytes),) uint8."""
        end = data_bytes // LINE_BYTES * _LINE.itemsize
        self.lines = memory[:end].view(_LINE)
        """Records, (l,), one per line."""
        self._sites = memory[end : history_bytes(data_bytes)].reshape(MOST_USERS * _SITES_EACH, _SITE_BYTES)
        self._slots: dict[str, int] = {}

    def clear(self) -> None:
        """Forget an earlier job's history: one user calls it before any begins."""
        self.lines[:] = np.zeros((), _LINE)
        self._sites[:] = 0

    def slot(self, user: int, site: str) -> int:
        """Return the number of a user's place in its program; places beyond the table share one number."""
        if site not in self._slots:
            number = min(len(self._slots), _SITES_EACH - 1)
            text = site if number < _SITES_EACH - 1 else "one of many places"
            encoded = np.frombuffer(text.encode()[-_SITE_BYTES:], np.uint8)
            row = self._sites[user * _SITES_EACH + number]
            row[:] = 0
            row[: len(encoded)] = encoded
            self._slots[site] = user * _SITES_EACH + number
        return self._slots[site]

    def stored(self, line: int) -> Written:
        """Return the user with stores in a line that it has not flushed, and its place."""
        record = self.lines[line]
        return Written(int(record["stored_by"]) - 1, self._site(record["stored_at"]))

    def written(self, line: int) -> Written:
        """Return the user that wrote a line back last, and the place where it stored that."""
        record = self.lines[line]
        return Written(int(record["written_by"]) - 1, self._site(record["written_at"]))

    def _site(self, slot: int) -> str:
        return bytes(self._sites[int(slot)]).rstrip(b"\0").decode(errors="replace")
