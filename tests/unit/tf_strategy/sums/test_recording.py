import pytest

from coarse.protocol.clock import VirtualClock
from tf_strategy.sums.recording import Recorder, Transfer


def test_a_transfer_lasts_as_long_as_its_block():
    clock = VirtualClock()
    recorder = Recorder(clock)
    clock.advance_to(2.0)
    with recorder.during("push", 1, 100):
        clock.advance_to(5.0)
    assert recorder.transfers == [Transfer(kind="push", bucket=1, nbytes=100, begin_s=2.0, end_s=5.0)]


def test_what_fails_is_no_transfer():
    recorder = Recorder(VirtualClock())
    with pytest.raises(ValueError, match="lost"), recorder.during("take", 0, 1):
        raise ValueError("lost")
    assert recorder.transfers == []
