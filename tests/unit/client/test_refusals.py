"""The errors of a client's calls say what was wanted, what came, the rank, the key and the remedy."""

import numpy as np
import pytest

from coarse.client.refusals import error_of, require_fit, stalled, unregistered
from coarse.errors import CapacityError, DeadRankError, MismatchError, StallError
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.records import Descriptor, Failed

DESCRIPTOR = Descriptor("w", int(DType.FLOAT32), int(Op.SUM), (2, 3), 0)


@pytest.mark.parametrize("kind", [MismatchError, CapacityError])
def test_what_a_device_says_becomes_the_error_that_it_names(kind):
    error = error_of(Failed(1, 1, kind.__name__, "why"))
    assert type(error) is kind
    assert str(error) == "why"


def test_the_rank_that_is_gone_is_part_of_the_error():
    error = error_of(Failed(1, 1, "DeadRankError", "why", 5))
    assert isinstance(error, DeadRankError)
    assert error.rank == 5


def test_an_out_fits_only_with_the_shape_and_the_type_of_the_key():
    require_fit(0, DESCRIPTOR, np.empty((2, 3), np.float32))
    for out in (np.empty((3, 2), np.float32), np.empty(6, np.float32), np.empty((2, 3))):
        with pytest.raises(ValueError, match=r"rank 0: 'w' is float32\[2, 3\] .* leave out away"):
            require_fit(0, DESCRIPTOR, out)
    with pytest.raises(TypeError, match="numpy array, got list"):
        require_fit(0, DESCRIPTOR, [[0.0] * 3] * 2)


def test_a_stall_names_who_is_missing_or_suspects_a_device():
    error = stalled(0, "'w'", 1.5, (1, 2))
    assert error.missing == (1, 2)
    assert str(error).startswith("rank 0: 'w' was not complete after 1.5 s; ranks [1, 2] have not pushed it")
    assert "whether a memory device hangs" in str(stalled(0, "'w'", 1.5, ()))
    hung = stalled(0, "'w'", 1.5, (2,), ["memory device 1 (MPI rank 3)"])
    assert "memory device 1 (MPI rank 3) did not answer within 1 s; see whether it hangs; ranks [2] have" in str(hung)
    assert isinstance(unregistered(0, DESCRIPTOR, 1.5), StallError)
    assert "24 bytes within 1.5 s" in str(unregistered(0, DESCRIPTOR, 1.5))
