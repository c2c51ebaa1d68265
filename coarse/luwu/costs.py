# Pure: no MPI, threads, clock or environment.
"""Costs of an optimizer node's instructions, whose sizes come from the PagedModel that it serves."""

from typing import Any

from coarse.luwu.steps import (
    AddPackets,
    CloseLinks,
    CloseStore,
    ConnectLinks,
    OpenLinks,
    OpenStore,
    SendFrame,
    SendLooked,
    StorePackets,
    StoreWork,
    UseMemory,
    WriteRecord,
    ZeroValues,
)
from coarse.luwu.store.instructions import (
    AddSum,
    Assign,
    ClearImage,
    Consumed,
    DropSums,
    Look,
    Offer,
    Prepared,
    ReadImage,
    ReadPulled,
    ReadSum,
    SquareSum,
    Sync,
    TellNorm,
    Update,
    WriteImage,
    WriteSum,
)
from coarse.luwu.store.layout import PagedModel
from coarse.protocol.costs import Cost, Costs, Way, cost_of, free
from coarse.protocol.dtypes import DType

_SUM_BYTES = 4
"""Bytes of one element's sum of gradients."""


def _elements(one: Any, model: PagedModel) -> int:  # noqa: ANN401
    begin, end = model.elements(one.unit, one.chunk)
    return end - begin


def _read_pulled(one: ReadPulled, model: PagedModel) -> Cost:
    return Cost(Way.READS, model.image(one.unit, one.chunk).pull_nbytes)


def _read_image(one: ReadImage, model: PagedModel) -> Cost:
    image = model.image(one.unit, one.chunk)
    return Cost(Way.READS, image.nbytes - image.update_begin)


def _write_image(one: WriteImage, model: PagedModel) -> Cost:
    return Cost(Way.WRITES, model.image(one.unit, one.chunk).nbytes)


def _read_sum(one: ReadSum, model: PagedModel) -> Cost:
    return Cost(Way.READS, _SUM_BYTES * _elements(one, model))


def _write_sum(one: WriteSum, model: PagedModel) -> Cost:
    return Cost(Way.WRITES, _SUM_BYTES * _elements(one, model))


def _look(one: Look, model: PagedModel) -> Cost:
    return Cost(Way.READS, 0 if one.at is None else _SUM_BYTES * _elements(one, model))


def _update(one: Update, model: PagedModel) -> Cost:
    return Cost(Way.STEPS, _elements(one, model))


def _store_work(work: StoreWork, model: PagedModel) -> Cost:
    return cost_of(COSTS, work.instruction, model)


def _send_frame(step: SendFrame, _: PagedModel) -> Cost:
    return Cost(Way.SENDS, sum(nbytes for _, nbytes in step.payloads))


def _store_packets(step: StorePackets, _: PagedModel) -> Cost:
    return Cost(Way.ADDS, (step.end - step.begin) * step.ring.packet_bytes)


def _add_packets(step: AddPackets, _: PagedModel) -> Cost:
    return Cost(Way.ADDS, len(step.sources) * step.num_elements * DType(step.wire).itemsize)


def _zero(step: ZeroValues, _: PagedModel) -> Cost:
    return Cost(Way.ADDS, step.nbytes)


COSTS: Costs = {
    **dict.fromkeys((OpenStore, UseMemory, WriteRecord, CloseStore, OpenLinks, ConnectLinks, CloseLinks), free),
    **dict.fromkeys((Offer, ClearImage, Consumed, DropSums, Sync, Prepared, TellNorm, SendLooked), free),
    **dict.fromkeys((AddSum, SquareSum, Assign), free),  # hidden behind the disks (LuWu 3.3)
    StoreWork: _store_work,
    ReadPulled: _read_pulled,
    ReadImage: _read_image,
    WriteImage: _write_image,
    ReadSum: _read_sum,
    WriteSum: _write_sum,
    Look: _look,
    Update: _update,
    SendFrame: _send_frame,
    StorePackets: _store_packets,
    AddPackets: _add_packets,
    ZeroValues: _zero,
}
