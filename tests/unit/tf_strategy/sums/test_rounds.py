"""A roll call: who is where, what rank 0 says beside it, and errors in the user's words; and what is recorded."""

import numpy as np
import pytest

from coarse.client.handle import Handle
from coarse.errors import DeadRankError, MismatchError, StallError
from coarse.protocol.clock import VirtualClock
from tf_strategy.sums import rounds
from tf_strategy.sums.places import ProgramPlace
from tf_strategy.sums.rounds import SAID_BYTES, BucketTransfer, DeviceRows, Recorder

HERE, THERE = ProgramPlace("a sum", ("float32[3]",)), ProgramPlace("a sum", ("float32[4]",))


class Devices:
    """Adds up what all ranks wrote; `take` fails with an error where one is given."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.rows: list[np.ndarray] = []
        self.error: Exception | None = None

    def client(self) -> "Client":
        return Client(self)


class Client:
    """One rank's."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices

    def host_array(self, descriptor):
        self.mine = np.zeros(descriptor.shape, np.int64)
        self._devices.rows.append(self.mine)
        return self.mine

    def push_pull(self, descriptor, array, out):
        assert array is None, "what is said lies in device memory already"
        return Handle(self, 1, out)

    def take(self, key, out, timeout_s):
        if self._devices.error is not None:
            raise self._devices.error
        out[:] = sum(self._devices.rows)
        return out, True


class Runtime:
    """As much as a roll call asks for."""

    def __init__(self, devices: Devices, rank: int) -> None:
        self.client_index = rank
        self._client = devices.client()
        self.placement = type("Placement", (), {"num_clients": devices.num_ranks})

    def require_client(self):
        return self._client


@pytest.fixture
def devices():
    return Devices(3)


@pytest.fixture
def calls(devices, monkeypatch):
    """Three ranks' roll calls."""
    found = [DeviceRows(Runtime(devices, rank)) for rank in range(devices.num_ranks)]
    monkeypatch.setattr(rounds, "stream_blobs", lambda blob, name: [call._place.encoded for call in found])
    return found


def meet(calls):
    """Every rank meets the others: the sum that all see is that of what all wrote."""
    rows = [call._rows.copy() for call in calls]
    for call in calls:
        for other, row in zip(calls, rows, strict=True):
            other._rows[:] = row
        call.meet()


def test_ranks_at_one_place_pass_and_hear_what_each_said(calls):
    for number in range(1, 4):
        for rank, call in enumerate(calls):
            call.begin(HERE, bytes([rank, number] * 3))
        meet(calls)
        assert calls[2].number == number
        assert [calls[2].said(rank, 6).tolist() for rank in range(3)] == [[rank, number] * 3 for rank in range(3)]


def test_what_was_said_before_is_not_said_again(calls):
    for said in (bytes(range(SAID_BYTES)), b""):
        for call in calls:
            call.begin(HERE, said)
        meet(calls)
    assert not calls[0].said(1, SAID_BYTES).any()


def test_ranks_at_different_places_are_all_told_who_is_where(calls):
    for call, place in zip(calls, (HERE, THERE, HERE), strict=True):
        call.begin(place)
    for rank, call in enumerate(calls):
        with pytest.raises(MismatchError) as caught:
            meet([call, *calls[:rank], *calls[rank + 1 :]])
        text = f"rank {rank}: at synchronisation 1 a sum is float32[3] on ranks 0, 2 but float32[4] on rank 1"
        assert text in str(caught.value)


def test_a_rank_that_has_synchronised_more_often_is_noticed(calls):
    calls[0].begin(HERE)
    for call in calls:
        call.begin(HERE)
    with pytest.raises(MismatchError, match=r"a sum .* comes sooner on some"):
        meet(calls)


def test_who_does_not_come_is_named_with_what_was_waited_for(calls, devices):
    devices.error = StallError("rank 0: 'tensorflow/roll' was not complete after 5 s; ranks [1, 2]", missing=(1, 2))
    calls[0].begin(HERE)
    with pytest.raises(StallError) as caught:
        calls[0].meet()
    assert caught.value.missing == (1, 2)
    assert str(caught.value).startswith(
        "rank 0 waited at synchronisation 1, a sum (float32[3]): ranks [1, 2] have not come in time; see"
    )


def test_a_device_that_hangs_is_named_and_no_rank_is_blamed(calls, devices):
    devices.error = StallError("rank 0: 'tensorflow/roll' was not complete after 5 s; device 1 did not answer")
    calls[0].begin(HERE)
    with pytest.raises(StallError, match="device 1 did not answer"):
        calls[0].meet()


def test_who_has_left_is_named_without_the_names_of_the_wire(calls, devices):
    devices.error = DeadRankError("rank 1 (MPI rank 4) has shut down without pushing 'tensorflow/roll', which", rank=4)
    calls[0].begin(HERE)
    with pytest.raises(DeadRankError) as caught:
        calls[0].meet()
    assert str(caught.value).endswith(": rank 1 (MPI rank 4) has shut down; see why it ends before the others")


def test_who_has_died_is_named_with_what_was_waited_for(calls, devices):
    devices.error = DeadRankError("rank 2: worker 1 (MPI rank 1) died", rank=1)
    calls[2].begin(THERE)
    with pytest.raises(DeadRankError) as caught:
        calls[2].meet()
    assert caught.value.rank == 1
    assert str(caught.value) == (
        "rank 2 waited at synchronisation 1, a sum (float32[4]): worker 1 (MPI rank 1) died"
    )


def test_a_transfer_lasts_as_long_as_its_block():
    clock = VirtualClock()
    recorder = Recorder(clock)
    clock.advance_to(2.0)
    with recorder.during("push", 1, 100):
        clock.advance_to(5.0)
    assert recorder.transfers == [BucketTransfer(kind="push", bucket=1, nbytes=100, begin_s=2.0, end_s=5.0)]


def test_what_fails_is_no_transfer():
    recorder = Recorder(VirtualClock())
    with pytest.raises(ValueError, match="lost"), recorder.during("take", 0, 1):
        raise ValueError("lost")
    assert recorder.transfers == []
