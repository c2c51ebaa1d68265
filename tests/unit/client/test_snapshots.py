"""What a worker does about a snapshot that never ends."""

from types import SimpleNamespace

import pytest

from coarse.client.snapshots import ClientSnapshots


class SilentLink:
    """A line on which nothing comes in time."""

    protocol = SimpleNamespace(client=0, ended_snapshots={})

    def wait_until(self, is_done, limit_s):
        return False


def test_a_last_snapshot_that_stalls_is_warned_of_and_keeps_nobody_from_going_on():
    states = SimpleNamespace(client=SimpleNamespace(link=SilentLink()))
    snapshots = ClientSnapshots(states, 2)
    snapshots._number, snapshots._is_observed = 0, False
    with pytest.warns(RuntimeWarning, match="snapshot 0 was not on the disk"):
        snapshots.finish()
