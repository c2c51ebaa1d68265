"""What a worker does about a snapshot that never ends, and about overwriting what one holds."""

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from coarse.errors import SnapshotError
from coarse.snapshots.client import ClientSnapshots
from coarse.snapshots.records import SnapshotCopied, SnapshotEnded, SnapshotFailed


class SilentLink:
    """A line on which nothing comes in time."""

    protocol = SimpleNamespace(
        client=0, placement=SimpleNamespace(num_clients=2), listen=lambda kind, listener: None
    )
    lock = nullcontext()

    def wait_until(self, is_done, limit_s):
        return False


def client_of(link, **states):
    """A client that has nothing but what a snapshot asks of it."""
    states = SimpleNamespace(guards=[], **states)
    return SimpleNamespace(link=link, protocol=link.protocol, states=states, before_leaving=[])


def test_a_last_snapshot_that_stalls_is_warned_of_and_keeps_nobody_from_going_on():
    snapshots = ClientSnapshots(client_of(SilentLink()))
    snapshots._number, snapshots._is_observed = 0, False
    with pytest.warns(RuntimeWarning, match="snapshot 0 was not on the disk"):
        snapshots.finish()


def test_a_package_that_is_missing_is_told_where_the_snapshot_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    snapshots = ClientSnapshots(client_of(SilentLink()))
    told = []
    monkeypatch.setattr(snapshots, "finish", lambda: None)
    monkeypatch.setattr(snapshots, "_tell", told.extend)
    with pytest.raises(SnapshotError, match=r"pip install 'coarse-cxl\[snapshot\]'"):
        snapshots.begin(tmp_path, 0, {}, {}, ())
    assert isinstance(told[0], SnapshotFailed)  # so that the other workers' wait raises too


class AnsweringLink:
    """A line on which the device grants whatever is asked, and which keeps the keys."""

    def __init__(self, said):
        self.protocol = SimpleNamespace(
            client=0, placement=SimpleNamespace(num_clients=2), next_token=lambda: 0, listen=self.listen
        )
        self.said = said
        self.lock = nullcontext()
        self.asked = []

    def listen(self, kind, listener):
        for record in self.said:
            if isinstance(record, kind):
                listener(record)

    def read(self):
        """All that has come has been read."""

    def ask(self, requests, tokens, what):
        self.asked += [key for _, touch in requests for key in touch.keys]


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ([SnapshotCopied(3)], [0, 1]),
        ([SnapshotCopied(4)], []),
        ([SnapshotCopied(5)], []),
        ([SnapshotCopied(3), SnapshotEnded(4, "")], []),
    ],
)
def test_leave_is_asked_once_for_what_may_not_be_copied_yet_and_never_for_what_is(said, asked):
    link = AnsweringLink(said)
    arrays = {name: SimpleNamespace(array=np.zeros(4)) for name in "ab"}
    snapshots = ClientSnapshots(client_of(link, arrays=arrays, device=0))
    snapshots._number, snapshots._uncopied = 4, {"a": 0, "b": 1}
    for names in (["a"], None, ["b"]):
        snapshots.before_overwrite(names)
    assert link.asked == asked
