"""Which model a worker publishes while it waits for the end of another one's minibatch."""

import threading
from types import SimpleNamespace

import pytest

from coarse.errors import DeadRankError, MismatchError
from coarse.odc.client.model import OdcModel, Other
from coarse.odc.client.protocol import OdcClient
from coarse.odc.layout import NO_TOKENS, OdcDeclaration, OdcLayout, OdcUnit
from coarse.odc.records import OdcCommitted, OdcFailed, OdcPublish
from coarse.protocol.dtypes import DType
from coarse.strategy.sharding import Sum
from tests.support.odc_cluster import placement_of

UNITS = (OdcUnit(8, (2,), int(DType.FLOAT32)),) * 2
DECLARATION = OdcDeclaration(
    members=(0, 1, 2), units=UNITS, sum=Sum.INT64, cache_bytes=0, top=18, num_slots=1
)  # fmt: skip
COMMITTED = OdcCommitted(0, 0, NO_TOKENS, (0, 0), ())


def machine() -> OdcClient:
    """Worker 0's."""
    return OdcClient(0, 0, OdcLayout(DECLARATION, placement_of((0, 0, 0), (0,))))


def published(client: int, minibatch: int, first: int, last: int) -> OdcPublish:
    return OdcPublish(client, 0, minibatch, first, last, (minibatch,) * (last - first))


def test_who_has_published_what_this_worker_has_not_is_ahead():
    own = machine()
    assert own.ahead() == ()
    own.on_record(published(1, 0, 0, 1))
    assert own.ahead() == (1,)
    own.publish(0, 1, [True])
    assert own.ahead() == ()  # such as after a step of some units' optimizer, which all workers have made
    own.on_record(published(2, 0, 0, 2))
    assert own.ahead() == (2,)
    own.publish(1, 2, [True])
    assert own.ahead() == ()


def test_nobody_is_ahead_in_a_minibatch_that_this_worker_has_not_begun():
    own = machine()
    own.publish(0, 2, [True, True])
    own.end()
    own.on_record(COMMITTED)
    own.on_record(published(1, 1, 0, 2))
    assert own.ahead() == ()
    own.take_committed()
    assert own.ahead() == (1,)


@pytest.mark.parametrize(("failed", "kind"), [
    (OdcFailed(0, "MismatchError", "why"), MismatchError), (OdcFailed(0, "DeadRankError", "why", 1), DeadRankError),
])  # fmt: skip
def test_a_minibatch_that_cannot_end_raises_what_the_device_names(failed, kind):
    waiting = Waiting(0)
    waiting.machine.on_record(failed)
    with pytest.raises(kind, match="rank 0: call 1: why") as raised:
        waiting._is_so(lambda: False, lambda: ())
    assert getattr(raised.value, "rank", 4) == 4


class Waiting(OdcModel):
    """A model whose minibatch 0 worker 0 ends, which devices answer as they are told."""

    def __init__(self, num_ended: int) -> None:
        self.machine = machine()
        self.name = "call 1"
        self._link = SimpleNamespace(lock=threading.Lock())
        self._client = SimpleNamespace(protocol=SimpleNamespace(placement=SimpleNamespace(ranks=(3, 4, 5))))
        self._num_ended = num_ended
        self.num_asked = 0

    def _wait(self, is_done, awaited, what) -> None:
        """Word of the end comes once nothing else is to be done."""
        if not is_done():
            self.machine.on_record(COMMITTED)
        assert is_done()

    def _heard(self) -> dict[int, tuple[int, int]]:
        self.num_asked += 1
        return {1: (5, self._num_ended), 2: (5, 0)}


@pytest.mark.parametrize(("num_ended", "num_published"), [(0, 1), (1, 0)])
def test_another_model_is_published_to_who_has_not_come_to_the_end_and_not_to_who_has_stepped_since(
    num_ended, num_published
):
    ended, other = Waiting(num_ended), Waiting(0)
    other.machine.on_record(published(1, 0, 0, 2))
    calls = []

    def publish() -> None:
        other.machine.publish(0, 2, [True, True])
        calls.append(other)

    assert ended.committed([Other(other, publish)]) == COMMITTED
    assert len(calls) == num_published
    assert ended.num_asked == 1
