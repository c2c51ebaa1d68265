"""Bandwidth of the paper's FPGA prototype by access size, in the three ways that it compares (COARSE V-B)."""

import enum

from coarse.errors import ConfigError
from coarse.hardware.machine import Machine, pair_s
from coarse.hardware.presets import load_preset
from coarse.protocol.units import KIB
from coarse.strategy.routing import FULL_BANDWIDTH_SHARE

SIZES = tuple(64 * KIB * 2**power for power in range(11))
"""64 KiB to 64 MiB."""
_GPU, _FPGA = "gpu0", "memory0"


class Way(enum.StrEnum):
    """How bytes go between FPGA memory and a processor."""

    CCI = "CCI"
    """The CPU loads and stores."""
    INDIRECT = "GPU Indirect"
    """Through the CPU's memory, copied piece by piece, so that the slower half sets the rate."""
    DIRECT = "GPU Direct"
    """Peer to peer."""


def prototype() -> Machine:
    """The preset."""
    return load_preset("coarse-fpga")


def bytes_per_s(way: Way, nbytes: int, *, reads: bool) -> float:
    """Bandwidth of one access of this size."""
    machine = prototype()
    source, target = (_FPGA, _GPU) if reads else (_GPU, _FPGA)
    match way:
        case Way.CCI:
            return _coherent(machine, reads=reads)
        case Way.INDIRECT:
            seconds = pair_s(machine, source, target, nbytes, bidirectional=False, kind="load" if reads else "store")
        case Way.DIRECT:
            seconds = pair_s(machine, source, target, nbytes, bidirectional=False, kind="pcie")
    return nbytes / seconds


def gain(nbytes: int, *, reads: bool) -> float:
    """GPU Direct over CCI."""
    return bytes_per_s(Way.DIRECT, nbytes, reads=reads) / bytes_per_s(Way.CCI, nbytes, reads=reads)


def full_rate_bytes(machine: Machine, source: str, target: str, sizes: tuple[int, ...] = SIZES) -> int:
    """The smallest of the sizes whose direct copy reaches 95 % of the best bandwidth, the profiler's rule."""
    rates = {n: n / pair_s(machine, source, target, n, bidirectional=False, kind="pcie") for n in sizes}
    wanted = FULL_BANDWIDTH_SHARE * max(rates.values())
    return next(nbytes for nbytes, rate in rates.items() if rate >= wanted)


def _coherent(machine: Machine, *, reads: bool) -> float:
    if machine.coherence is None:
        raise ConfigError(f"the machine {machine.name} states no [coherence]", key="coherence")
    return machine.coherence.load_bytes_per_s if reads else machine.coherence.store_bytes_per_s
