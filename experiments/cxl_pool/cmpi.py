"""cMPI's latency over Niagara 2.0 against TCP (arXiv 2510.05476).

    python -m experiments.cxl_pool.cmpi --out results/cmpi

Input: 0.79 us for an access, 2.2 us with its flush, and 16 and 18 us for TCP over Ethernet and over a ConnectX-6.
Outcome: what a message takes that one host stores and another loads.
"""

from dataclasses import replace

from coarse.hardware.links import path_alone_s
from coarse.hardware.presets import load_preset
from experiments.cxl_pool.inputs import CMPI_PRESET, inputs_now
from experiments.validation.claims import ClaimRow, Given, Number, Unit, claim_row
from experiments.validation.script import main

TITLE = "cMPI over TCP"
TCP_S = {"Ethernet": 16e-6, "a ConnectX-6": 18e-6}
INPUTS = ("Niagara 2.0", "TCP")
_OF_MESSAGES = (*INPUTS, "message")
MESSAGE_BYTES = 8


def access_s() -> float:
    """Seconds of one store into the pool with its flush; a host's, not a GPU's."""
    machine = load_preset(CMPI_PRESET)
    assert machine.pool is not None
    return path_alone_s((machine.pool.port("store", stores=True),), MESSAGE_BYTES)


def message_s() -> float:
    """Seconds until 8 bytes that one host stores and flushes have been invalidated and loaded by another."""
    machine = replace(load_preset(CMPI_PRESET), num_nodes=2)
    assert machine.pool is not None
    names = ("store", "load")[: inputs_now().num_accesses]
    ways = [machine.pool.port(name, stores=name == "store") for name in names]
    return path_alone_s((*ways, *machine.pool.shared(2)), MESSAGE_BYTES)


def rows() -> list[ClaimRow]:
    """The abstract's ratios."""
    return [
        claim_row(
            "latency of TCP over Ethernet and over a ConnectX-6, over that of an access with its flush", "abstract",
            "7.2x to 8.1x", Given(), [tcp_s / access_s() for tcp_s in TCP_S.values()], Unit.TIMES, inputs=INPUTS,
            why="both sides of the ratio are the paper's",
        ),
        claim_row(
            "the same over a message of 8 bytes that one host stores and another loads, each with its flush",
            "abstract", "7.2x to 8.1x", Number(7.2, 8.1, is_of_set=True),
            [tcp_s / message_s() for tcp_s in TCP_S.values()],
            Unit.TIMES, inputs=_OF_MESSAGES,
            why="a message is two accesses; the ratio comes out only where the load needs neither its own 0.79 us nor "
            "a flush, so 2.2 us is one access and not a message, or the reader's part is hidden",
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    main(rows, None, __doc__, title=TITLE)
