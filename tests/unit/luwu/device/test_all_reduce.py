"""An all-reduce by switches: each worker gets what all have pushed, combined, whatever is lost or overtakes others."""

from dataclasses import replace
from functools import reduce

import numpy as np
import pytest

from coarse.luwu.device.reducing import ReducingNode
from coarse.luwu.many_to_one.frames import HEADER_BYTES
from coarse.luwu.store.declaration import ALL_REDUCE
from coarse.luwu.store.instructions import AddSum, Consumed, Offer
from coarse.luwu.store.operations import GRADIENTS, Asked, Pull, Push
from coarse.protocol.dtypes import DType
from tests.support.claims import takes_all
from tests.support.layouts import choices, covering
from tests.unit.luwu.device.hosts import Hosts
from tests.unit.luwu.device.test_hosts import OTHERS, PLACE, TREES
from tests.unit.luwu.device.test_served import declared
from tests.unit.luwu.device.training import Program

ROUNDS = 3
KINDS = {"max": DType.INT32, "integers": DType.INT64, "float32": DType.FLOAT32}
TREES_HERE = {**{name: {"switches": switches} for name, switches in TREES.items()}, **OTHERS}


class Reducing(Hosts):
    """Workers who combine all units, again and again."""

    def values(self, worker: int, number: int, unit: int) -> np.ndarray:
        """(n,) integers, small enough that float32 adds them exactly."""
        rng = np.random.default_rng([worker, number, unit])
        drawn = rng.integers(-(2**20), 2**20, self.model.units[unit].num_elements)
        return drawn.astype(self.model.pulled.storage)

    def wanted(self, number: int, unit: int) -> np.ndarray:
        all_values = [self.values(worker, number, unit) for worker in self.workers]
        return reduce(np.maximum if self.declaration.sum == "max" else np.add, all_values)

    def program(self, worker: int, steps: int) -> Program:
        for number in range(steps):
            pulled = []
            for unit in range(len(self.model.units)):
                values = self.values(worker, number, unit)
                line = self.line(worker, unit)
                line.push(Push(unit, GRADIENTS, True), 1, source=values)
                pulled.append((line.pull(unit, values.view(np.uint8)), values))
                if self.rng.random() < 0.5:
                    yield None
            for unit, (pull, values) in enumerate(pulled):
                yield lambda pull=pull: pull.is_done
                assert values.tobytes() == self.wanted(number, unit).tobytes(), (number, unit)

    def looking(self, worker: int, steps: int) -> Program:
        yield None

    def require_zeros(self, worker: int) -> None:
        pass


EVERY = choices({"tree": tuple(TREES_HERE), "kind": tuple(KINDS), "loss": (0.0, 0.1)}, lambda **_: True)
SOME = EVERY if takes_all() else [EVERY[number] for number in covering(EVERY, 1)]


@pytest.mark.parametrize(("tree", "kind", "loss"), [tuple(choice.values()) for choice in SOME])
def test_all_workers_get_what_all_have_pushed(
    tree: str, kind: str, loss: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"nodes": (3,), **TREES_HERE[tree]}
    placement, switches = given.get("placement", PLACE), given["switches"]
    for seed in (0, 5, 10) if takes_all() else (0,):
        declaration = declared(placement.num_clients)
        model = replace(
            declaration.model, chunk_elements=[128, 512][seed % 2], num_devices=len(given["nodes"]), num_states=0,
            pulled=KINDS[kind],
        )  # fmt: skip
        declaration = replace(
            declaration, model=model, optimizer=ALL_REDUCE, sum=kind, groups=(), group_of=(), storage=None,
            gradients=KINDS[kind], nodes=given["nodes"], network="udp",
            switches=tuple((switch, tuple(below)) for switch, below in switches.items()),
        )  # fmt: skip
        hosts = Reducing(
            declaration, placement, seed, 0, monkeypatch, is_born=False, loss=loss,
            payload_bytes=[192, 256, 320][seed % 3] + HEADER_BYTES, window=[3, 9, 40][seed // 3 % 3],
        )  # fmt: skip
        hosts.train(ROUNDS)
        assert bool(hosts.num_resent) == bool(loss)


def asked(number: int, operation: Push | Pull) -> Asked:
    return Asked(number, operation, 0)


def test_a_sum_waits_for_a_slot_and_for_somebody_who_pulls_it() -> None:
    model = replace(declared(1).model, num_states=0)  # unit 0 has five chunks
    node = ReducingNode(model, num_window=2)
    push = Push(0, GRADIENTS, True)
    assert node.on_asked(asked(0, push), is_first=True) == []
    adds = [AddSum(0, 0, chunk, chunk, True, False) for chunk in range(2)]
    assert [one for chunk in range(3) for one in node.on_full(0, chunk)] == adds  # the third has no slot
    assert node.on_added(adds[1], 0.0) == [Consumed(0, 1)]  # nobody has asked to pull it
    assert node.on_asked(asked(1, Pull(0)), is_first=True) == [Offer(1, 0, 1)]
    assert node.on_asked(asked(1, Pull(0)), is_first=False) == []
    assert node.on_added(adds[0], 0.0) == [Consumed(0, 0), Offer(0, 0, 0)]
    assert not node.is_quiet
    third = AddSum(0, 0, 2, 0, True, False)
    assert node.on_freed(1) == [third]
    assert node.on_added(third, 0.0) == [Consumed(0, 2), Offer(2, 0, 2)]
    assert node.is_quiet
