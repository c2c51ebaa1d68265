# Pure: no MPI, threads, clock or environment.
"""Texts of any length in records, which have to fit a ring of the mailbox."""

FRAGMENT_CHARACTERS = 16 * 1024
"""So that a record fits a ring, whatever JSON makes of its characters."""
_REASON_CHARACTERS = 2000


def fragments(text: str) -> list[tuple[bool, str]]:
    """A text in pieces that fit records: (whether it is the last, piece) each."""
    step = FRAGMENT_CHARACTERS
    pieces = [text[begin : begin + step] for begin in range(0, len(text), step)] or [""]
    return [(index == len(pieces) - 1, piece) for index, piece in enumerate(pieces)]


def shortened(reason: str) -> str:
    """A reason that fits a record."""
    return reason if len(reason) <= _REASON_CHARACTERS else f"{reason[:_REASON_CHARACTERS]} ..."
