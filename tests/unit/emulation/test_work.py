"""A device's sums have their turn when links and adder are through, in the order of those times."""

from coarse.emulation.envelope import FabricPort
from coarse.emulation.work import EmulatedWork
from coarse.protocol.dtypes import DType
from coarse.proxy.instructions import Reduce, Region

NEAR, FAR = Region(1, 0), Region(0, 64)


class Box:
    """A mailbox whose fabric a test is."""

    def __init__(self):
        self.now_s = 2.0
        self.spent, self.held = [], []

    def at_s(self):
        return self.now_s

    def spend(self, way, nbytes, source, target, then, *, at_s=None, priority=0):
        self.spent.append((way, nbytes, source, target, at_s, then))

    def hold(self, moment_s):
        self.held.append(moment_s)

    def go_back_to(self, moment_s):
        self.now_s = moment_s
        self.held.remove(moment_s)

    def end(self, at_s):
        """What was begun first is over."""
        *_, then = self.spent.pop(0)
        then(at_s)


def reduce_of(*sources, targets=(NEAR,)):
    return Reduce(
        key=7, epoch=0, first=0, last=1, dtype=int(DType.FLOAT32), op=0, divisor=1, num_elements=4, sources=sources,
        targets=targets, priority=0,
    )  # fmt: skip


def test_a_sum_waits_for_what_it_fetches_and_for_the_adder_and_its_time_is_held():
    box = Box()
    work = EmulatedWork(1, box)
    asked = reduce_of(NEAR, FAR)
    work.give(asked)
    assert work.take() is None
    ways = []
    at_s = 3.0
    while box.spent:
        ways.append(box.spent[0][0])
        box.now_s = 99.0
        box.end(at_s)
        at_s += 1.0
    assert ways[0] is FabricPort.FETCH
    assert FabricPort.ADDER in ways
    assert box.held == [at_s - 1.0]
    assert work.take() is asked
    assert (box.now_s, box.held) == (at_s - 1.0, [])
    assert work.take() is None
