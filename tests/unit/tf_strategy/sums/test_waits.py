"""A wait in vain is told without the names of the wire, with where it was, whom for and what to do."""

import numpy as np
import pytest

from coarse.client.handle import Handle
from coarse.errors import DeadRankError, StallError
from tf_strategy.data import end_agreement
from tf_strategy.data.end import Given
from tf_strategy.sums.waits import told

STALL = StallError("rank 0: 'key' was not complete after 5 s; ranks [1]", missing=(1,))
LEFT = DeadRankError("rank 1 (MPI rank 4) has shut down without pushing 'key', which others push", rank=4)
DIED = DeadRankError("rank 0: worker 1 (MPI rank 4) died", rank=4)


@pytest.mark.parametrize("advice", ["", "read all"])
def test_a_wait_says_where_it_was_and_ends_with_the_advice_where_a_program_is_at_fault(advice):
    more = f"; {advice}" if advice else ""
    start = "rank 0 waited at a place: "
    assert str(told(STALL, 0, "a place", advice)) == (
        f"{start}ranks [1] have not come in time; see what they wait for, or raise stall_timeout_s{more}"
    )
    assert str(told(LEFT, 0, "a place", advice)) == (
        f"{start}rank 1 (MPI rank 4) has shut down; see why it ends before the others{more}"
    )
    assert str(told(DIED, 0, "a place", advice)) == f"{start}worker 1 (MPI rank 4) died"


@pytest.mark.parametrize("error", [STALL, LEFT, DIED])
def test_who_is_missing_or_dead_is_kept(error):
    other = told(error, 0, "a place")
    assert type(other) is type(error)
    assert vars(other) == vars(error)


class Client:
    """Whoever asks by it waits in vain."""

    def device_array(self, descriptor):
        return np.zeros(descriptor, np.int64)

    def push_pull(self, descriptor, array, out):
        return Handle(self, 1, out)

    def take(self, key, out, timeout_s):
        raise STALL


def test_a_question_about_data_that_is_not_answered_names_the_batch_and_who_did_not_read_it():
    agreement = end_agreement.DataAgreement.__new__(end_agreement.DataAgreement)
    agreement._client, agreement._rank, agreement._descriptor = Client(), 0, (2, 3)
    with pytest.raises(StallError, match=r"equally often") as caught:
        agreement._said_by_all(Given(2, 5, 6))
    assert str(caught.value).startswith("rank 0 waited at batch 5 of dataset number 2: ranks [1] have not come in time")
    assert caught.value.missing == (1,)
