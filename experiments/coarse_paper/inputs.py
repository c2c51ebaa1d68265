"""What the evaluation takes for granted, chosen once for all figures, each with its source or as an assumption.

No input is a result of the paper that we then hold ours against. What the figures of training rest on can be varied:
`variations.py` shows how much each choice matters.
"""

import enum
from dataclasses import dataclass, replace

from coarse.errors import ConfigError
from coarse.hardware.compute import TENSORFLOW_BERT, THROUGHPUTS, Throughput, scaled_from_v100
from coarse.hardware.machine import Machine
from coarse.hardware.models import Precision
from coarse.hardware.presets import load_preset
from coarse.hardware.wiring import PathKind
from experiments.coarse_paper.eight_models import THROUGHPUTS_OF_MORE
from experiments.coarse_paper.machines import WIDE_T4_BYTES_PER_S, with_direct_copies, with_ports
from experiments.validation.declared import ASSUMED, DERIVED, SOURCED, Declared


class Platform(enum.StrEnum):
    """The paper's machines (Table I); the values are our presets."""

    T4 = "aws-g4dn"
    V100 = "aws-p3"
    P100 = "sdsc-p100"

    @property
    def gpu(self) -> str:
        """As the tables of throughput name it."""
        return self.name.lower()

    @property
    def has_tensor_cores(self) -> bool:
        """Whether mixed precision is faster than fp32 there."""
        return self is not Platform.P100


SERIAL_BUS_BYTES_PER_S = 13e9
"""COARSE III-E, one direction of sixteen lanes; V-B takes direct copies at the full serial bus."""
T4_BUS_BYTES_PER_S = 6.3e9
"""Of eight lanes; see the preset."""
LOAD_SLOWDOWN, STORE_SLOWDOWN = 17.0, 4.0
"""COARSE Fig. 3: a direct copy over a coherent load, and over a coherent store."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The choices that the paper's text leaves open, or states once."""

    mixed_precision: bool = True
    hold_back: bool = True
    """Whether the workers' ring waits for the end of backward: the paper's baseline blocks compute (II-B), and so does
    what dual synchronisation leaves to the workers (III-F). `coarse predict` has all-reduce overlap, as it is live."""
    rings_both_ways: bool = True
    """Whether the workers' ring uses both directions of NVLinks."""
    device_ring: PathKind = "auto"
    profiler_sees_nvlink: bool = False
    """Whether the rates of the paper's formula are those of NVLink where it is on."""
    push_overlap: float = 1.0
    """1 if gradients are pushed to proxies as backward produces them, 0 if after it; between, linear."""
    copies_over_nvlink: bool = True
    """Whether pushes and pulls use NVLink where it is on and there is one: the profiler alone leaves it out (IV-B)."""
    bert_container: str | None = None
    """Whose throughput of BERT-large is taken: NVIDIA's PyTorch one of 2019, or that of a TensorFlow container."""
    alexnet_batch: float = 512
    """Samples of a GPU, rounded: TensorFlow's benchmark has 512, and V-D 64 for ResNet-50."""
    wide_t4: bool = False
    """Whether a T4 has sixteen lanes of PCIe, as this evaluation took it to have at first, or eight."""
    t4_bus_bytes_per_s: float = T4_BUS_BYTES_PER_S
    """One direction of a T4's lanes, for copies and for DENSE."""
    bus_bytes_per_s: float = SERIAL_BUS_BYTES_PER_S
    """Of the other machines, for DENSE."""
    store_slowdown: float = STORE_SLOWDOWN
    """Direct copy over coherent store."""
    compute_speed: float = 1.0
    """How many times as fast as published all GPUs compute."""
    v100_memory_gib: float = 32
    """Of a GPU."""
    own_bus: bool = True
    """Whether DENSE's direct copy is the machine's own serial bus, or 13 GB/s on all machines."""
    direct_copies: bool = False
    """Whether the V100 machine's GPUs copy through PCIe switches directly, as SDSC's do, or staged through the host."""
    neighbours_reduce: bool = False
    """Whether two workers that all-reduce share a switch, or stand where they have room for a device each."""
    sharer_growth: float | None = None
    """None is the preset's."""
    load_slowdown: float | None = None
    """Direct copy over coherent load; None is the preset's 17."""
    stores_overlap: bool = True
    """Whether DENSE stores gradients as backward produces them, or all of them after it."""
    loads_wait: bool = True
    """Whether DENSE loads parameters when all are updated, or each as soon as it is."""

    def precision(self, platform: Platform) -> Precision:
        """What a GPU computes in; gradients are synchronised in fp32 always."""
        return Precision.FP16 if self.mixed_precision and platform.has_tensor_cores else Precision.FP32

    def machine(self, platform: Platform, *, num_nodes: int, nvlink: bool) -> Machine:
        """The preset with the choices made."""
        machine = replace(load_preset(platform.value), num_nodes=num_nodes, nvlink=nvlink)
        if platform is Platform.T4:
            machine = with_ports(machine, WIDE_T4_BYTES_PER_S if self.wide_t4 else self.t4_bus_bytes_per_s)
        if self.direct_copies and platform is Platform.V100:
            machine = with_direct_copies(machine)
        coherence = machine.coherence
        if coherence is None:
            raise ConfigError(f"the machine {machine.name} states no [coherence], which DENSE needs", key="coherence")
        if self.sharer_growth is not None:
            coherence = replace(coherence, sharer_growth=self.sharer_growth)
        bus = self.serial_bus(platform)
        load = bus / (LOAD_SLOWDOWN if self.load_slowdown is None else self.load_slowdown)
        coherence = replace(coherence, load_bytes_per_s=load, store_bytes_per_s=bus / self.store_slowdown)
        return replace(machine, coherence=coherence)

    def serial_bus(self, platform: Platform) -> float:
        """Bytes/s of a direct copy, one direction (COARSE V-B: the full serial bus)."""
        return self.t4_bus_bytes_per_s if platform is Platform.T4 and self.own_bus else self.bus_bytes_per_s

    def throughputs(self) -> tuple[Throughput, ...]:
        """What is known of GPUs alone."""
        known = (*THROUGHPUTS, *THROUGHPUTS_OF_MORE)
        if self.bert_container is None:
            return known
        others = tuple(row for row in known if row.model != "bert-large")
        chosen = tuple(row for row in TENSORFLOW_BERT if f"container {self.bert_container} " in row.source)
        return (*others, *chosen, *scaled_from_v100(chosen))


CENTRAL = Inputs()

DECLARED = (
    Declared(
        "compute",
        "ResNet-50 batch 64, BERT-large batch 2 and 4; samples/s of one GPU alone",
        SOURCED,
        "NVIDIA DeepLearningExamples (BERT: PyTorch, 2019-07-08; TensorFlow's are a variation) and TensorFlow "
        "benchmarks; T4: V100's times the two cards' ratio of "
        "inference there; P100's BERT: V100's by peak FLOPS of the PCIe card (assumption)",
    ),
    Declared(
        "precision",
        "mixed on T4 and V100, fp32 on P100 (no tensor cores); gradients in fp32",
        ASSUMED,
        "the paper states none; run_squad.sh of NVIDIA's BERT defaults to mixed. Chosen after seeing both: in fp32 the "
        "stated gains over DENSE are out of reach, in mixed the stated batch limits",
    ),
    Declared(
        "blocking ring",
        "the workers' ring begins when backward has ended",
        SOURCED,
        "COARSE II-B (synchronisation blocks compute), T_train of III-F; by default TensorFlow's NcclAllReduce packs "
        "all gradients into one",
    ),
    Declared(
        "ring directions",
        "over NVLink the workers' ring uses both directions of every cable, as the sync groups do",
        SOURCED,
        "NVIDIA/nccl issue 713 shows NCCL's rings among four V100; COARSE IV-A for sync groups",
    ),
    Declared(
        "device ring",
        "NCCL among the GPUs that play devices: NVLink where on, else PCIe",
        SOURCED,
        "COARSE IV-B; the CCI links of Fig. 4 are a variation",
    ),
    Declared(
        "formula's rates",
        "BW_proxy and BW_GPU over PCIe, NVLink or not",
        SOURCED,
        "COARSE III-F takes them from the profiler, which leaves NVLink out (IV-B)",
    ),
    Declared(
        "NVLink", "on; off for all is a section of its own", SOURCED,
        "COARSE Table I (NVLink, PCIe); IV-B disables it to profile alone",
    ),
    Declared(
        "eight models", "TensorFlow's five of images and NVIDIA's BERT, GNMT and Transformer", ASSUMED,
        "COARSE II-B names who implemented them; figure 2's labels are not in the text at hand, nor batches in it. "
        "Batches are those of the published throughputs; of T4 by P100 and V100 times ResNet-50's and BERT's ratio",
    ),
    Declared(
        "pushes' links",
        "pushes and pulls use NVLink where it is on and there is one; routes and shards are those of PCIe",
        SOURCED,
        "COARSE IV-B leaves NVLink out of the profiler, and of nothing else; all over PCIe is a variation",
    ),
    Declared(
        "T4's lanes",
        "eight of PCIe 3.0: 6.3 GB/s one way",
        ASSUMED,
        "PipeSwitch (OSDI'20, 6) of g4dn.2xlarge; no second source was found. Sixteen lanes are a variation",
    ),
    Declared(
        "coherent rates",
        "loads 1/17, stores 1/4 of the machine's serial bus per sharer: 13 GB/s, of T4 6.3",
        SOURCED,
        "COARSE V-B: direct copy at the full serial bus, slowed as the prototype was; 13 GB/s is III-E's, T4's see its "
        "lanes",
    ),
    Declared(
        "sharer growth", "each further sharer adds 20 % of time", DERIVED,
        "COARSE (I) says that it grows. A line takes five slots of CXL's flits, and to snoop one more sharer one slot",
    ),
    Declared(
        "DENSE",
        "one device; stores go out during backward, loads begin when all sums are done, forward waits for all",
        SOURCED,
        "COARSE V-D ran TensorFlow's ParameterServer, whose steps begin by reading all variables, and II-A uses new "
        "values at the next iteration's start. That stores overlap and forward doesn't is an assumption",
    ),
    Declared(
        "links",
        "the presets' tables by size",
        SOURCED,
        "Tartan's DGX-1 with P100 for p3 and SDSC's crossing, Titan RTX for g4dn, COARSE III-E for SDSC's local pair",
    ),
    Declared(
        "local latency",
        "p3: crossing the root complex adds 2 us",
        ASSUMED,
        "COARSE III-E and V-C say that local is lower; the stand-in measured both alike",
    ),
    Declared(
        "pushes",
        "gradients leave for the proxies as backward produces them",
        SOURCED,
        "COARSE Fig. 9, III-F: T_sync(proxy) runs beside backward",
    ),
    Declared("adders", "a GPU's memory bandwidth over 3", ASSUMED, "COARSE IV-B: stream processors add"),
    Declared("buckets", "small gradients fused to 25 MiB", ASSUMED, "as our DistributedOptimizer does"),
    Declared(
        "placement",
        "workers are half of the GPUs, or two of three; all-reduce runs on the same workers",
        SOURCED,
        "COARSE V-A; that all-reduce's workers stand where COARSE's do is an assumption",
    ),
    Declared(
        "memory",
        "Adam's states, activations of separate kernels, 1 GiB for the framework; with devices one copy of the "
        "parameters stays on the GPU",
        ASSUMED,
        "coarse/hardware/accelerator.py, held against published limits; a client maintains local parameters (III-D)",
    ),
    Declared(
        "V100's memory", "32 GB", SOURCED, "COARSE Table I: 768 GB of host memory, which p3dn has; other p3 have 16"
    ),
)
"""Everything that a row may name in its `inputs`."""
