"""A claim of many elements where many datagrams are lost; the hosts are those of test_network.py: FOLDER."""

import sys
import uuid

import numpy as np

import coarse
import coarse.torch as ct
from coarse.luwu.client.model import RemoteModel, new_model
from coarse.luwu.store.declaration import Declaration
from coarse.luwu.store.layout import PagedModel, PagedTensor, PagedUnit
from coarse.session import current
from tests.support.claims import Claim, report_claims

SWITCH, OPTIMIZER = 2, 3
NUM_ELEMENTS = 10_000_000
NUM_STEPS = 100
SETTINGS = '[{"lr": 1.0}]'


def opened() -> RemoteModel:
    """A model of one tensor in the optimizer node's memory."""
    unit = PagedUnit("all", (PagedTensor("all.w", (NUM_ELEMENTS,)),))
    runtime = current()
    declaration = Declaration(
        model=PagedModel(units=(unit,), num_states=0), optimizer="SGD", groups=({"lr": 1.0},), group_of=((0,),),
        num_workers=coarse.size(), storage=None, memory_bytes=256 << 20, run=uuid.uuid4().hex, nodes=(OPTIMIZER,),
        switches=((SWITCH, (0, 1)),), network="udp", loss=0.1,
    )  # fmt: skip
    model = new_model(runtime.require_client())
    model.open(declaration)
    return model


def drawn(step: int, worker: int) -> np.ndarray:
    """(NUM_ELEMENTS,) float32: small integers, whose sums are exact in whatever order."""
    return np.random.default_rng([step, worker]).integers(-8, 9, NUM_ELEMENTS, np.int8).astype(np.float32)


def a_billion_elements_lose_no_bit() -> None:
    model = opened()
    wanted = np.zeros(NUM_ELEMENTS, np.float32)
    model.push_values(0, 0, int(model.client == 0), wanted if model.client == 0 else None)
    pulled = np.empty(4 * NUM_ELEMENTS, np.uint8)
    for step in range(1, NUM_STEPS + 1):
        model.push_gradients(0, 1, is_last=True, room=None, source=drawn(step, model.client))
        model.end_pass()
        model.step(step, SETTINGS, 1.0, 1)
        model.wait_for_pull(model.pull(0, pulled))
        for worker in range(coarse.size()):
            wanted -= drawn(step, worker)
        assert pulled.tobytes() == wanted.tobytes(), step
        model.send_state(b"")
    model.close()


CLAIMS: tuple[Claim, ...] = (a_billion_elements_lose_no_bit,)


if __name__ == "__main__":
    ct.init()
    report_claims(CLAIMS, sys.argv[1])
