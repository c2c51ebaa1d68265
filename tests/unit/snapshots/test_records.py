"""What a client asks its device to hold comes there as it was."""

import pytest

from coarse.protocol.dtypes import DType
from coarse.protocol.fragments import FRAGMENT_CHARACTERS, fragments
from coarse.snapshots.records import Held, HeldEntry

ENTRIES = (
    HeldEntry("w", int(DType.FLOAT32), (2, 3), 64, False),
    HeldEntry("\u00fc\u2713", int(DType.INT64), (), 0, True),
)


@pytest.mark.parametrize("num_characters", [0, 1, FRAGMENT_CHARACTERS, 3 * FRAGMENT_CHARACTERS + 1])
def test_what_is_held_comes_back_from_its_fragments(num_characters):
    held = Held("folder", 7, {"text": "x" * num_characters, "list": [1, None, 2.5]}, "digest", ENTRIES, 4096)
    pieces = fragments(held.encode())
    assert Held.decode("".join(text for _, text in pieces)) == held
    assert [is_last for is_last, _ in pieces] == [False] * (len(pieces) - 1) + [True]
    assert max(len(text) for _, text in pieces) <= FRAGMENT_CHARACTERS
