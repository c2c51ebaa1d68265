# Pure: no MPI, threads, clock or environment.
"""What a device's instructions cost under on-demand communication; sizes are an OdcDeclaration."""

from coarse.odc.layout import OdcDeclaration
from coarse.odc.steps import OdcAdd, OdcAddInOrder, OdcDone, OdcMark, OdcMerge, OdcSend, OdcSetAside, OdcStore
from coarse.protocol.costs import Cost, Costs, Way, free


def _add(step: OdcAdd, declaration: OdcDeclaration) -> Cost:
    return Cost(Way.ADDS, declaration.piece_nbytes(step.unit, step.mask))


def _add_in_order(step: OdcAddInOrder, declaration: OdcDeclaration) -> Cost:
    return Cost(Way.ADDS, len(step.sources) * declaration.piece_nbytes(step.unit, step.mask))


def _merge(step: OdcMerge, declaration: OdcDeclaration) -> Cost:
    return Cost(Way.ADDS, declaration.sum_nbytes(step.unit))


def _store(step: OdcStore, _: OdcDeclaration) -> Cost:
    return Cost(Way.ADDS, step.nbytes)


def _send(step: OdcSend, _: OdcDeclaration) -> Cost:
    return Cost(Way.SENDS, sum(nbytes for _, nbytes in step.payload))


COSTS: Costs = {
    OdcAdd: _add,
    OdcAddInOrder: _add_in_order,
    OdcDone: free,
    OdcMark: free,
    OdcMerge: _merge,
    OdcSend: _send,
    OdcSetAside: free,
    OdcStore: _store,
}
