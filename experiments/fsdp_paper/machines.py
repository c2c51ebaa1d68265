"""The FSDP paper's cluster, as far as it is described: eight A100 per host behind NVLink, hosts on 2 Tb/s RoCE."""

from dataclasses import dataclass

from coarse.hardware.machine import Accelerator, Machine, MemoryDevice
from coarse.hardware.topology_tree import HOST, Place, PlaceKind, Tree
from coarse.hardware.wire import Wire
from coarse.protocol.units import GIB, bytes_per_s_from_gbit_per_s
from experiments.validation.declared import Declared, Taken

GPUS_PER_HOST = 8
TITLE = "FSDP: claims and ours"
_SOCKET = Wire(name="host", bytes_per_s=1e12)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What the paper's notes leave open, or state once."""

    nvlink_bytes_per_s: float = 300e9
    nvlink_latency_s: float = 2.5e-6
    network_latency_s: float = 5e-6
    flops_per_s: float = 186e12
    """Of a GPU, recomputation counted."""


CENTRAL = Inputs()
_taken = Taken(CENTRAL)
under, inputs_now = _taken.under, _taken.now

DECLARED = (
    Declared(
        "A100 host",
        "300 GB/s per GPU and direction, 2.5 us per port",
        "assumption",
        "NVLink 3 of 12 lanes through switches, at its data sheet's rate",
    ),
    Declared(
        "RoCE", "250 GB/s per host and direction, 5 us", "source", "FSDP 5.1: 2 Tb/s; the latency is an assumption"
    ),
    Declared(
        "A100 compute",
        "186 TFLOPS, recomputation counted",
        "source",
        "FSDP Fig. 7b at batch 2, where communication hides: so no row holds it against anything",
    ),
    Declared(
        "GPT-175B",
        "24 of its 96 blocks, 2048 tokens",
        "assumption",
        "blocks repeat; minGPT's length in the paper's notes is not stated",
    ),
    Declared("one stream", "collectives of all GPUs run in the order of their calls", "source", "FSDP 3.3.2"),
)
"""Everything that a row may name in its `inputs`."""


def a100_cluster(num_hosts: int) -> Machine:
    """So many hosts."""
    inputs = inputs_now()
    nvlink = Wire(name="nvlink", bytes_per_s=inputs.nvlink_bytes_per_s, latency_s=inputs.nvlink_latency_s)
    network = Wire(name="roce", bytes_per_s=bytes_per_s_from_gbit_per_s(2000), latency_s=inputs.network_latency_s)
    gpus = tuple(
        Place(name=f"gpu{number}", kind=PlaceKind.GPU, parent="socket0", wire=nvlink)
        for number in range(GPUS_PER_HOST)
    )
    socket = Place(name="socket0", kind=PlaceKind.SOCKET, parent=HOST, wire=_SOCKET)
    return Machine(
        name="fsdp-a100",
        tree=Tree(places=(socket, *gpus)),
        accelerator=Accelerator(
            name="A100",
            memory_bytes=80 * GIB,
            fp32_flops_per_s=19.5e12,
            fp16_flops_per_s=312e12,
            memory_bytes_per_s=2039e9,
        ),
        memory_device=MemoryDevice(
            adder_bytes_per_s=2039e9 / 3, optimizer_bytes_per_s=2039e9 / 7, capacity_bytes=80 * GIB
        ),
        peer_to_peer=True,
        network=network,
        num_nodes=num_hosts,
    )
