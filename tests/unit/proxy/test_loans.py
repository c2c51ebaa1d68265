"""What is lent is found by key and region; and what becomes of a key whose memory cannot be reached."""

import numpy as np
import pytest

from coarse.errors import LentMemoryError
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.plan import Placement
from coarse.protocol.records import Descriptor, Failed, Lend, Located, Push, Ready, Table
from coarse.proxy.device import Device
from coarse.proxy.instructions import Region, Send
from coarse.proxy.loans import Lender, Loans
from coarse.proxy.protocol import ProxyProtocol
from coarse.strategy.builtin import Coarse

KEY = 6
LEND = Lend(client=1, key=KEY, device=0, offset=4096, nbytes=400, source=10_000, target=20_000)


def loans(*lends: Lend) -> Loans:
    made = Loans({0: Lender(70, "worker 0"), 1: Lender(71, "worker 1")})
    for lend in lends:
        made.on_lend(lend)
    return made


def place(array) -> tuple[int, int] | None:
    """(Process, address), which LentArray shows to nobody else."""
    return None if array is None else (array._process_id, array._address)


@pytest.mark.parametrize("skip", [0, 40, 396])
def test_a_part_of_a_region_is_the_same_part_of_what_is_lent(skip):
    region = Region(0, 4096 + skip)
    known = loans(LEND)
    assert place(known.source(KEY, region, DType.FLOAT32, 1)) == (71, 10_000 + skip)
    assert place(known.target(KEY, region, DType.FLOAT32, 1)) == (71, 20_000 + skip)


@pytest.mark.parametrize("region", [Region(1, 4096), Region(0, 4095), Region(0, 4496)])
def test_no_other_region_is_lent(region):
    assert loans(LEND).source(KEY, region, DType.FLOAT32, 1) is None


def test_a_key_that_has_the_region_after_it_was_free_knows_nothing_of_the_loan():
    assert loans(LEND).source(KEY + 1, Region(0, 4096), DType.FLOAT32, 1) is None


def test_a_worker_that_contributes_nothing_lends_a_target_alone():
    known = loans(LEND._replace(source=0))
    assert known.source(KEY, Region(0, 4096), DType.FLOAT32, 1) is None
    assert place(known.target(KEY, Region(0, 4096), DType.FLOAT32, 1)) == (71, 20_000)


@pytest.mark.parametrize("ends", ["end", "lend 0"])
def test_what_is_lent_no_more_lies_in_its_region_and_others_do_not_change(ends):
    other = LEND._replace(client=0, offset=8192)
    known = loans(LEND, other)
    known.end(KEY, 1) if ends == "end" else known.on_lend(LEND._replace(source=0, target=0))
    assert known.source(KEY, Region(0, 4096), DType.FLOAT32, 1) is None
    assert place(known.source(KEY, Region(0, 8192), DType.FLOAT32, 1)) == (70, 10_000)


# --- memory that cannot be reached


class Unreachable:
    """A device's bytes of which some are lent and gone."""

    def __init__(self, error: LentMemoryError) -> None:
        self._error = error

    def reduce(self, work: object) -> None:
        raise self._error

    receive = finish = reduce


class Driver:
    """Notes what a device sends, and takes sums at once."""

    def __init__(self) -> None:
        self.sent: list[Send] = []
        self.work: list[object] = []
        self.send = self.sent.append
        self.reduce = self.work.append

    def send_chunk(self, send: object) -> None:
        raise AssertionError(send)

    def reserve(self, reserve: object) -> str:
        return ""

    def finish(self) -> None:
        raise AssertionError


def pushed(error: LentMemoryError) -> list[Send]:
    """What a device of two, on one node with both clients, sends after a sum that it could not take."""
    placement = Placement(
        client_nodes=(0, 0), device_nodes=(0, 0), local_proxies=(0, 1), ranks=(0, 1, 2, 3), planner=Coarse(),
        num_sync_groups=2,
    )  # fmt: skip
    driver = Driver()
    device = Device(ProxyProtocol(0, placement, 1 << 16), driver, Unreachable(error))
    descriptor = Descriptor("w", int(DType.FLOAT32), int(Op.SUM), (4,), 0)
    for client in range(2):
        device.on_record(Table(client, 1, (0, 0, 0, 1 << 20)))
    for client in range(2):
        device.on_record(Located(client, KEY, 1, descriptor, client, 4096 * client))
    device.protocol._sync.keys[KEY, 1].served.add(0)
    for client in range(2):
        device.on_record(Push(client, KEY, 1, 0, 0, 1, present=True))
    driver.sent.clear()
    (work,) = driver.work
    device.reduce(work)
    return driver.sent


def test_a_key_whose_memory_cannot_be_reached_fails_for_all_and_nobody_gets_a_result():
    sent = pushed(LentMemoryError("the memory of worker 1: Bad address"))
    assert [send.endpoint for send in sent] == [3, 0]
    for send in sent:
        failed = send.record
        assert type(failed) is Failed
        assert (failed.key, failed.error) == (KEY, "LentMemoryError")
        for part in ("'w'", "device 0", "worker 1", "Bad address", "lend_from_bytes = 0"):
            assert part in failed.text


def test_of_a_worker_that_has_ended_its_end_is_told_and_not_its_memory():
    sent = pushed(LentMemoryError("the memory of worker 1: No such process", has_ended=True))
    assert not [send for send in sent if type(send.record) in (Failed, Ready)]
    assert not np.any([send.endpoint < 2 for send in sent])
