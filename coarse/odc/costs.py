# Pure: no MPI, threads, clock or environment.
"""Costs of on-demand communication; sizes are OdcSizes, and None for records that a device sends.

A worker writes publications and pieces to its own device's memory, and each device hears of the rows that it adds or
sends on once these are there. Rows in another device's memory are fetched before they are added. A worker reads shards
where its node has them.
"""

from coarse.odc.layout import OdcSizes, Spot
from coarse.odc.records import (
    OdcAdded,
    OdcCommitted,
    OdcCopied,
    OdcEnd,
    OdcFailed,
    OdcFetch,
    OdcFetched,
    OdcOpen,
    OdcOpened,
    OdcPublish,
    OdcPush,
    OdcQuery,
    OdcRequest,
    OdcStatus,
    OdcSummed,
)
from coarse.odc.steps import (
    OdcAdd,
    OdcAddInOrder,
    OdcDone,
    OdcMark,
    OdcMerge,
    OdcRead,
    OdcSend,
    OdcSetAside,
    OdcStore,
    OdcTake,
)
from coarse.protocol.costs import FREE, Cost, Costs, Way, free


def _publish(record: OdcPublish, sizes: OdcSizes | None) -> Cost:
    if sizes is None:
        return FREE
    units = sizes.layout.declaration.units[record.first : record.last]
    changed = [
        unit.shard_nbytes for unit, minibatch in zip(units, record.contents, strict=True)
        if minibatch == record.minibatch
    ]  # fmt: skip
    return Cost(Way.PUSHES, sum(changed), sizes.device) if changed else FREE


def _push(record: OdcPush, sizes: OdcSizes) -> Cost:
    layout, told = sizes.layout, sizes.device
    rows = len(layout.adds(told, record.client, record.unit))
    rows += sum(map(len, layout.sends(told, record.client, record.unit).values()))
    nbytes = rows * layout.declaration.piece_nbytes(record.unit, record.mask)
    return Cost(Way.PUSHES, nbytes, layout.device_of(record.client))


def _add(step: OdcAdd, sizes: OdcSizes) -> Cost:
    nbytes = sizes.layout.declaration.piece_nbytes(step.unit, step.mask)
    source = step.source
    if source is None or source.device == sizes.device:
        return Cost(Way.ADDS, nbytes)
    return Cost(Way.ADDS, nbytes, fetched=((source.device, nbytes),))


def _add_in_order(step: OdcAddInOrder, sizes: OdcSizes) -> Cost:
    nbytes = sizes.layout.declaration.piece_nbytes(step.unit, step.mask)
    return _added([source if isinstance(source, Spot) else None for source in step.sources], nbytes, sizes)


def _added(sources: list[Spot | None], nbytes: int, sizes: OdcSizes) -> Cost:
    """Return the cost of adding rows; a source of None has come in a message."""
    far = [source.device for source in sources if source is not None and source.device != sizes.device]
    return Cost(Way.ADDS, len(sources) * nbytes, fetched=tuple((device, nbytes) for device in far))


def _merge(step: OdcMerge, sizes: OdcSizes) -> Cost:
    return Cost(Way.ADDS, sizes.layout.declaration.sum_nbytes(step.unit))


def _store(step: OdcStore, _: OdcSizes) -> Cost:
    return Cost(Way.ADDS, step.nbytes)


def _send(step: OdcSend, _: OdcSizes) -> Cost:
    return Cost(Way.SENDS, sum(nbytes for _, nbytes in step.payload))


def _read(step: OdcRead, sizes: OdcSizes) -> Cost:
    nbytes = step.num_shards * sizes.layout.declaration.units[step.unit].shard_nbytes
    return Cost(Way.PULLS, nbytes, step.device)


def _take(step: OdcTake, sizes: OdcSizes) -> Cost:
    return Cost(Way.PULLS, sizes.layout.declaration.sum_nbytes(step.unit), step.device)


COSTS: Costs = {
    **dict.fromkeys((OdcOpen, OdcOpened, OdcFetch, OdcRequest, OdcFetched, OdcCopied, OdcAdded, OdcEnd), free),
    **dict.fromkeys((OdcSummed, OdcCommitted, OdcFailed, OdcQuery, OdcStatus), free),
    **dict.fromkeys((OdcDone, OdcMark, OdcSetAside), free),
    OdcPublish: _publish,
    OdcPush: _push,
    OdcAdd: _add,
    OdcAddInOrder: _add_in_order,
    OdcMerge: _merge,
    OdcSend: _send,
    OdcStore: _store,
    OdcRead: _read,
    OdcTake: _take,
}
"""Cost of each record and step; a record that travels by OdcSend costs as that step."""
