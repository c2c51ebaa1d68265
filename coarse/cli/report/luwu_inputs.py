"""Basis of a prediction of LuWu and its baselines: each input with its value and source."""

from collections.abc import Iterator
from dataclasses import dataclass

from coarse.hardware.machine import Machine
from coarse.hardware.presets import machine_named
from coarse.luwu.simulation.capacity import HOST_BYTES, NUM_SLOTS, OVERHEAD_BYTES
from coarse.luwu.simulation.cluster import SUMS_BYTES
from coarse.luwu.simulation.moves import GPU_STEP_BYTES, PACKET_BYTES
from coarse.luwu.simulation.scenario import PEAK_SHARE, PagedScenario

PAPER, DATA_SHEET, ASSUMED, STATED = "paper", "data sheet", "assumed", "stated"
_PRESET = "luwu"


@dataclass(frozen=True)
class Input:
    """Number that is not predicted."""

    name: str
    value: float
    unit: str
    source: str
    """Source: `paper` (LuWu, and where), `data sheet`, `assumed`, `calibrated on ROW`, or `stated` by the user."""


def inputs_of(scenario: PagedScenario) -> tuple[Input, ...]:
    """Return all inputs of the table's numbers except the model's shape."""
    return (*_of_machine(scenario.machine), *_of_modes(scenario))


def _of_machine(machine: Machine) -> Iterator[Input]:
    """Yield a machine's inputs; a value other than the preset's has the user as its source."""
    preset = _quantities(machine_named(_PRESET))
    for name, (value, unit, source) in _quantities(machine).items():
        yield Input(name, value, unit, source if value == preset[name][0] else STATED)


def _quantities(machine: Machine) -> dict[str, tuple[float, str, str]]:
    """Return the machine's numbers for these modes by name, each with its unit and the preset's source."""
    assert machine.disks is not None
    assert machine.network is not None
    disks, gpu, tree = machine.disks, machine.accelerator, machine.tree
    return {
        "a GPU's memory": (gpu.memory_bytes, "bytes", f"{PAPER} 4.1"),
        "a GPU's peak in 16 bits": (gpu.fp16_flops_per_s, "FLOP/s", DATA_SHEET),
        "a GPU's memory's rate": (gpu.memory_bytes_per_s, "bytes/s", DATA_SHEET),
        "a worker's card, each way": (machine.network.bytes_per_s, "bytes/s", f"{PAPER} 4.1"),
        "a GPU's PCIe, each way": (tree.by_name[tree.gpus[0]].wire.bytes_per_s, "bytes/s", f"{PAPER} 4.1"),
        "a host's memory": (disks.host_memory_bytes, "bytes", f"{PAPER} 4.1"),
        "a worker's disks, each way": (disks.worker_bytes_per_s, "bytes/s", f"{PAPER} 4.1"),
        "a worker's disks' room": (disks.worker_capacity_bytes, "bytes", f"{PAPER} 4.1"),
        "the optimizer node's disks, each way": (disks.optimizer_bytes_per_s, "bytes/s", f"{PAPER} 4.1"),
        "the optimizer node's disks' room": (disks.optimizer_capacity_bytes, "bytes", f"{PAPER} 4.1"),
        "the optimizer node's disks, how many": (disks.num_optimizer_disks, "", f"{PAPER} 4.1"),
    }


def _of_modes(scenario: PagedScenario) -> Iterator[Input]:
    luwu, other = scenario.luwu_cluster, scenario.baseline_cluster
    share = scenario.peak_share
    attained = "calibrated on figure 11a, 183 TFLOPS of OPT-175B" if share == PEAK_SHARE else STATED
    yield Input("share of a GPU's peak that it attains", share, "", attained)
    yield Input("tokens of a sample", scenario.sequence, "", f"{PAPER} 4.1")
    yield Input("luwu: versions on the optimizer node's disks", NUM_SLOTS, "", f"{ASSUMED}, as our storage has it")
    yield Input("luwu: memory for sums that wait", SUMS_BYTES, "bytes", ASSUMED)
    yield Input("luwu: parameters that the optimizer node steps", luwu.updates_per_s, "1/s", ASSUMED)
    yield Input("share of a worker's disks' rate that is attained", other.disk_share, "",
                "calibrated on figure 2b, the optimizer's 37 % of a step with OPT-175B")  # fmt: skip
    yield Input("parameters that a worker's CPU steps", other.updates_per_s, "1/s", ASSUMED)
    yield Input("bytes of a parameter that a GPU steps", GPU_STEP_BYTES, "bytes", "by the optimizer's arithmetic")
    yield Input("bytes of a shard's parameter in the host's memory", HOST_BYTES, "bytes",
                "calibrated on figure 10, 175B at 8 workers and not 276B")  # fmt: skip
    yield Input("a GPU's memory for the framework", OVERHEAD_BYTES, "bytes", ASSUMED)
    yield Input("share of a collective that takes the GPU's time", other.interference, "",
                f"{PAPER}, figure 3a; with --prefetch alone")  # fmt: skip
    yield Input("switchml: float32's share of bfloat16's rate", other.float32_share, "", f"{DATA_SHEET}, TF32")
    yield Input("switchml: a packet's gradients", PACKET_BYTES, "bytes", f"{PAPER} 4.1, folded pipes")
    yield Input("switchml: packets of a worker's CPU, each way", other.packets_per_s, "1/s", ASSUMED)
