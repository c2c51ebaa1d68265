"""A question about data that nobody answers."""

import numpy as np
import pytest

from coarse.client.handle import Handle
from coarse.errors import StallError
from tf_strategy.data import end_agreement
from tf_strategy.data.end import StepReport

STALL = StallError("rank 0: 'key' was not complete after 5 s; ranks [1]", missing=(1,))


class Client:
    """Whoever asks by it waits in vain."""

    def host_array(self, descriptor):
        return np.zeros(descriptor, np.int64)

    def push_pull(self, descriptor, array, out):
        return Handle(self, 1, out)

    def take(self, key, out, timeout_s):
        raise STALL


def test_a_question_about_data_that_is_not_answered_names_the_batch_and_who_did_not_read_it():
    agreement = end_agreement.DataAgreement.__new__(end_agreement.DataAgreement)
    agreement._client, agreement._rank, agreement._descriptor = Client(), 0, (2, 3)
    with pytest.raises(StallError, match=r"equally often") as caught:
        agreement._said_by_all(StepReport(2, 5, 6))
    assert str(caught.value).startswith("rank 0 waited at batch 5 of dataset number 2: ranks [1] have not come in time")
    assert caught.value.missing == (1,)
