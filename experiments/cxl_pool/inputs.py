"""What the rows of pools take for granted: rates of the presets, and choices that the abstracts leave open."""

from dataclasses import dataclass, replace
from functools import partial

from coarse.hardware.machine import Machine
from coarse.hardware.presets import load_preset
from coarse.hardware.shared_pool import SharedPool
from experiments.cxl_pool.collectives import CHUNK_BYTES, Primitive
from experiments.validation.declared import ASSUMED, SOURCED, Declared, Taken
from experiments.validation.interval_study import interval_of

CCCL_PRESET, CMPI_PRESET = "cxl-titan2-6xcz120", "cxl-niagara2"
_GIB = 1 << 30


def pool_of(preset: str) -> SharedPool:
    """The pool of a preset, as its file states it."""
    pool = load_preset(preset).pool
    assert pool is not None
    return pool


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs that may have been otherwise; rates and latencies are the presets'."""

    store_bytes_per_s: float
    """Of a node, into CCCL's pool."""
    device_bytes_per_s: float
    """Of each of its devices."""
    device_latency_s: float
    chunk_bytes: int = CHUNK_BYTES
    largest_bytes: int = 4 * _GIB
    """Of the sizes over which CCCL's means are."""
    num_accesses: int = 2
    """Of a message of cMPI: 2 is a store and a load, each with its flush."""


_POOL = pool_of(CCCL_PRESET)
assert _POOL.store_bytes_per_s is not None
CENTRAL = Inputs(
    store_bytes_per_s=_POOL.store_bytes_per_s, device_bytes_per_s=_POOL.device_bytes_per_s,
    device_latency_s=_POOL.device_latency_s,
)  # fmt: skip
_taken = Taken(CENTRAL)
under, inputs_now = _taken.under, _taken.now


def cccl_machine(**changes: float) -> Machine:
    """CCCL's machine under the inputs that are taken now, with fields of its pool at other values."""
    now = inputs_now()
    taken = {
        "store_bytes_per_s": now.store_bytes_per_s, "device_bytes_per_s": now.device_bytes_per_s,
        "device_latency_s": now.device_latency_s,
    }  # fmt: skip
    machine = load_preset(CCCL_PRESET)
    return replace(machine, pool=replace(_POOL, **{**taken, **changes}))  # type: ignore[arg-type]


CCCL_DECLARED = (
    Declared("ports", "55 GB/s each way", ASSUMED, "PCIe 5 x16, less headers"),
    Declared("devices", "six of 36 GB/s, 0.21 us", SOURCED, "vendor's MLC figure; latency assumed"),
    Declared("stores", "26.8 GB/s a node", f"fitted to {Primitive.SCATTER}", "its mean ratio of 1.04"),
    Declared("InfiniBand", "24.5 GB/s, 5 us a step", ASSUMED, "200 Gbit/s, less headers; NCCL's rings"),
    Declared("chunks", "4 MiB", ASSUMED, "what is stored before a doorbell, and what a ring hands on"),
    Declared("sizes", "1 MiB to 4 GiB", ASSUMED, "the abstract names means and no sizes"),
)
CMPI_DECLARED = (
    Declared("Niagara 2.0", "0.79 us; 2.2 us and 9.5 GB/s with flushes", SOURCED, "cMPI"),
    Declared("TCP", "16 us over Ethernet, 18 us over a ConnectX-6", SOURCED, "cMPI"),
    Declared("message", "a store and a load, each with its flush", ASSUMED, "the abstract says latency alone"),
)
_cccl, _cmpi = partial(interval_of, CENTRAL, CCCL_DECLARED), partial(interval_of, CENTRAL, CMPI_DECLARED)
CCCL_INTERVALS = (
    _cccl("store_bytes_per_s", "stores", 25e9, 41e9, "the preset's: what Scatter takes, and what Broadcast would"),
    _cccl("device_bytes_per_s", "devices", 26e9, 36e9, "the preset's: what AllGather would take, and the vendor's"),
    _cccl("device_latency_s", "devices", 0.17e-6, 0.25e-6, "the preset's: early CXL modules"),
    _cccl("chunk_bytes", "chunks", 1 << 20, 16 << 20, "a quarter and four times; no size is stated"),
    _cccl("largest_bytes", "sizes", _GIB // 4, 4 * _GIB, "0.25 or 4 GiB; no size is stated", is_choice=True),
)
CMPI_INTERVALS = (
    _cmpi("num_accesses", "message", 1, 2, "1: latency is that of an access; 2: of a message", is_choice=True),
)
