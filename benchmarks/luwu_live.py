"""A GPT of 302 million parameters, trained by two workers and a memory device whose control group has 512 MiB.

python benchmarks/luwu_live.py --storage DIR     (as root; ten minutes; starts mpirun itself)

The device's group holds its interpreter, buffers, and the memory that it shares with workers. Its bytes at the disk
are the kernel's (/proc/PID/io). Losses stand beside those of torch's AdamW with everything in one memory.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

if TYPE_CHECKING:  # the device imports none of these
    import torch

RESULT = Path(__file__).parent / "results" / "luwu-live.json"
MIB = 1 << 20
LIMIT_BYTES = 512 * MIB
BUFFER_BYTES = 300 * MIB
NUM_WORKERS = 2
SHAPE = {"layers": 24, "width": 1024, "heads": 16, "context": 64}
ROWS = 2
"""Of each worker's micro-batch."""
WARM_UP_STEPS, STEPS = 1, 4
LEAST_OF_PLANNED = 0.98
"""Of the bytes that a step plans, this share at least must be seen at the disk, or the row is refused."""
LEARNING_RATE = 5e-5


def main() -> None:
    """Start the ranks, then train in memory, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--storage", type=Path, required=True, help="a new folder on a disk")
    parser.add_argument("--shared", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.shared is not None:
        run_rank(given.storage, given.shared)
        return
    from benchmarks.luwu_ranks import run_ranks

    with tempfile.TemporaryDirectory() as shared:
        with control_group() as group:
            (Path(shared) / "group").write_text(str(group))
            run_ranks(NUM_WORKERS + 1, __file__, "--storage", given.storage, "--shared", shared)
            peak = group / "memory.max_usage_in_bytes"
            peak_bytes = int(peak.read_text()) if peak.exists() else int((group / "memory.peak").read_text())
        row = json.loads((Path(shared) / "row.json").read_text())
    row |= {"device_limit_bytes": LIMIT_BYTES, "device_peak_bytes": peak_bytes, "group": f"{group}"}
    row["losses_in_memory"] = losses_in_memory()
    show(row)
    from benchmarks.provenance import provenance

    RESULT.write_text(json.dumps({**provenance("luwu_live.py", ["--storage", "DIR"], 1), **row}, indent=1) + "\n")


@contextmanager
def control_group() -> Iterator[Path]:
    """A group whose memory is limited, of version 1 or 2."""
    root = Path("/sys/fs/cgroup")
    is_first = (root / "memory").is_dir()
    group = (root / "memory" if is_first else root) / f"coarse-luwu-{os.getpid()}"
    group.mkdir()
    try:
        (group / ("memory.limit_in_bytes" if is_first else "memory.max")).write_text(str(LIMIT_BYTES))
        yield group
    finally:
        group.rmdir()


def show(row: dict[str, Any]) -> None:
    """What the row says, and whether it counts."""
    planned, seen = row["planned_bytes"], row["seen_bytes"]
    share = seen / planned
    print(
        f"{row['parameters'] / 1e6:.0f} M parameters, measured: {row['step_s']:.2f} s a step; the device's group has "
        f"{LIMIT_BYTES // MIB} MiB and took {row['device_peak_bytes'] / MIB:.0f}; workers' peaks "
        f"{', '.join(f'{peak / MIB:.0f}' for peak in row['worker_peak_bytes'])} MiB, of which "
        f"{row['worker_base_bytes'] / MIB:.0f} before there was a model; a unit has {row['unit_bytes'] / MIB:.0f}"
    )
    print(f"at the disk {seen / MIB:,.0f} MiB of {planned / MIB:,.0f} that were planned: {share:.3f}")
    for step, (network, memory) in enumerate(zip(row["losses"], row["losses_in_memory"], strict=True), 1):
        print(f"step {step}: loss {network:.6f}, in memory {memory:.6f}")
    if share < LEAST_OF_PLANNED:
        sys.exit("the row is refused: bytes did not come from the disk")


# --- ranks


def run_rank(storage: Path, shared: Path) -> None:
    """The last rank is the device, which joins its group before it imports anything."""
    config = {"partition": f"{NUM_WORKERS}:1", "stall_timeout_s": 300.0}
    if int(os.environ["OMPI_COMM_WORLD_RANK"]) == NUM_WORKERS:
        (Path((shared / "group").read_text()) / "cgroup.procs").write_text(str(os.getpid()))
        (shared / "device").write_text(str(os.getpid()))
        import coarse

        coarse.init(config)  # serves, and does not return
        return
    train(storage, shared, config)


def train(storage: Path, shared: Path, config: dict[str, Any]) -> None:
    """A worker."""
    import torch

    import coarse
    import coarse.torch as ct
    from benchmarks.luwu_ranks import planned_bytes
    from experiments.gpt.model import Gpt, GptShape, initialise

    torch.set_num_threads(1)
    ct.init(config)
    own = OwnMemory()
    base_bytes = own.peak_bytes
    with torch.device("meta"):
        bare = Gpt(GptShape(**SHAPE))
    parameters = sum(one.numel() for one in bare.parameters())
    unit_bytes = 4 * sum(one.numel() for one in bare.blocks[0].parameters())
    torch.manual_seed(1)
    model, optimizer = ct.model_in_network(
        bare, torch.optim.AdamW, lr=LEARNING_RATE, storage=[storage], memory=BUFFER_BYTES, initialise=initialise
    )
    device = Path("/proc") / (shared / "device").read_text() / "io"
    losses, ends_s, before = [], [], 0
    for step in range(1, WARM_UP_STEPS + STEPS + 1):
        loss = model(*batch_of(coarse.rank(), step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step == WARM_UP_STEPS:
            optimizer.wait()
            before = bytes_at_disk(device)
        ends_s.append(time.monotonic())
    optimizer.wait()
    seen = bytes_at_disk(device) - before
    means = ct.allreduce(torch.tensor(losses, dtype=torch.float64), name="losses").tolist()
    peaks = ct.allgather(torch.tensor([own.peak_bytes]), name="peaks").tolist()
    planned = sum(planned_bytes(optimizer.remote.told[0]))
    if coarse.rank() == 0:
        row = {
            "parameters": parameters, "unit_bytes": unit_bytes, "losses": means, "worker_peak_bytes": peaks,
            "worker_base_bytes": base_bytes, "seen_bytes": seen, "planned_bytes": STEPS * planned,
            "step_s": (ends_s[-1] - ends_s[WARM_UP_STEPS - 1]) / STEPS, "told": optimizer.remote.told,
        }  # fmt: skip
        (shared / "row.json").write_text(json.dumps(row))
    optimizer.close()


def bytes_at_disk(io: Path) -> int:
    """Read and written by a process, past the kernel's cache."""
    fields = dict(line.split(": ") for line in io.read_text().splitlines())
    return int(fields["read_bytes"]) + int(fields["write_bytes"])


class OwnMemory:
    """The most that this process had for itself, looked at again and again: without what it shares with the device."""

    def __init__(self) -> None:
        self.peak_bytes = self._now()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, self._now())
            time.sleep(0.02)

    def _now(self) -> int:
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon"))


def batch_of(worker: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A worker's rows and what comes next in them."""
    import torch

    from experiments.gpt.corpus import load_corpus

    corpus = load_corpus()
    raw = corpus.batch(
        step, seed=1, global_rows=ROWS * NUM_WORKERS, context=SHAPE["context"], worker=worker, workers=NUM_WORKERS
    )
    return torch.from_numpy(raw.tokens), torch.from_numpy(raw.targets)


def losses_in_memory() -> list[float]:
    """The same training by torch's AdamW, the mean of the workers' gradients in one process."""
    import torch

    from experiments.gpt.model import Gpt, GptShape, initialise

    with torch.device("meta"):
        model = Gpt(GptShape(**SHAPE))
    torch.manual_seed(1)
    fill(model, initialise)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses = []
    for step in range(1, WARM_UP_STEPS + STEPS + 1):
        optimizer.zero_grad()
        found = []
        for worker in range(NUM_WORKERS):
            loss = model(*batch_of(worker, step))
            (loss / NUM_WORKERS).backward()
            found.append(loss.item())
        optimizer.step()
        losses.append(sum(found) / NUM_WORKERS)
    return losses


def fill(model: torch.nn.Module, initialise: Callable[[torch.nn.Module], None]) -> None:
    """First values in the order in which a model in the network has them made."""
    from coarse.luwu.torch.first_values import FirstValues
    from coarse.luwu.torch.plan import plan_model

    plan = plan_model(model, None)
    first = FirstValues(plan, initialise)
    made = {}
    for unit, of in enumerate(plan.units):
        values = first.of(unit)
        made |= {tensor.name: values[place] for place, tensor in enumerate(of.tensors)}
    model.to_empty(device="cpu")
    model.load_state_dict(made)


if __name__ == "__main__":
    main()
