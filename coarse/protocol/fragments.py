# Pure: no MPI, threads, clock or environment.
"""Texts of any length in records, which have to fit a ring of the mailbox."""

FRAGMENT_CHARACTERS = 16 * 1024
"""Most characters of a fragment: its record fits a ring even after JSON has escaped every character."""
_REASON_CHARACTERS = 2000


def fragments(text: str) -> list[tuple[bool, str]]:
    """Split a text into pieces that fit records: (is it the last, piece) each."""
    step = FRAGMENT_CHARACTERS
    pieces = [text[begin : begin + step] for begin in range(0, len(text), step)] or [""]
    return [(index == len(pieces) - 1, piece) for index, piece in enumerate(pieces)]


def shortened(reason: str) -> str:
    """Shorten a reason so that it fits a record."""
    return reason if len(reason) <= _REASON_CHARACTERS else f"{reason[:_REASON_CHARACTERS]} ..."
