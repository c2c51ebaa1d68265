"""What models in the network push and pull from host to host per second, beside a plain blaster of datagrams.

python benchmarks/luwu_links.py     (starts mpirun itself: two hosts with a worker and a memory device each, and an
                                     optimizer node between which and them packets go, all on this machine)
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from benchmarks.luwu_ranks import run_ranks
from benchmarks.provenance import provenance

if TYPE_CHECKING:  # imported by ranks alone
    from coarse.luwu.client.model import RemoteModel
    from coarse.luwu.datagrams import DatagramLink

RESULT = Path(__file__).parent / "results" / "luwu-links.json"
RANKS = (("worker", "a"), ("memory_device", "a"), ("worker", "b"), ("memory_device", "b"), ("memory_device", "o"))
OPTIMIZER = 2
NUM_SENDERS = 2
DATAGRAM_BYTES = 65_507
"""What fills the loopback's packets, as models' links do."""
BLASTED_BYTES = 64 << 20
"""Of memory that is read, and written, over and over."""
MIB = 1 << 20
UNIT_ELEMENTS = 4 * MIB
NUM_UNITS = 4
CASES: dict[str, dict[str, Any]] = {
    "mpi": {"network": "mpi"},
    "udp": {"network": "udp"},
    "udp, 0.1 % lost": {"network": "udp", "loss": 0.001},
    "udp, 1 % lost": {"network": "udp", "loss": 0.01},
    "udp, 10 % lost": {"network": "udp", "loss": 0.1},
}
LEAST_OF_LOSSLESS = 0.9
"""The target at 0.1 % loss."""
LEAST_OF_BLASTER = 0.5
"""The target without losses."""


def main() -> None:
    """Start the ranks, and write and print what they found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--blast", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.blast is not None:
        print(blasted_bytes_per_s(given.blast))
    elif given.folder is not None:
        measure(Path(given.folder), given.rounds)
    else:
        start(given.rounds)


def start(rounds: int) -> None:
    """All ranks on this machine, divided into hosts by a table."""
    with tempfile.TemporaryDirectory() as folder:
        lines = [
            f'[[rank]]\nrank = {rank}\nrole = "{role}"\nnode = "{node}"' for rank, (role, node) in enumerate(RANKS)
        ]
        (Path(folder) / "table.toml").write_text("\n".join(lines))
        (Path(folder) / "config.toml").write_text('partition = "table.toml"\n')
        exports = {"COARSE_CONFIG": f"{folder}/config.toml"}
        run_ranks(len(RANKS), __file__, "--folder", folder, "--rounds", rounds, exports=exports)
        rows = json.loads((Path(folder) / "rows.json").read_text())
    print("| what | pushed GB/s | pulled GB/s | pushed, of the blaster | pulled, of the blaster | of lossless |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, row in rows.items():
        print(
            f"| {name} | {row['push'] / 1e9:.2f} | {row['pull'] / 1e9:.2f} | {row['push_of_blaster']:.2f} | "
            f"{row['pull_of_blaster']:.2f} | {row['push_of_lossless']:.2f}, {row['pull_of_lossless']:.2f} |"
        )
    for name, row, key, target in (
        ("udp", rows["udp"], "of_blaster", LEAST_OF_BLASTER),
        ("udp at 0.1 % loss", rows["udp, 0.1 % lost"], "of_lossless", LEAST_OF_LOSSLESS),
    ):
        for way in ("push", "pull"):
            held = "yes" if row[f"{way}_{key}"] >= target else "no"
            print(f"{way} by {name}: {row[f'{way}_{key}']:.2f} {key.replace('_', ' ')}, at least {target}: {held}")
    RESULT.write_text(json.dumps({**provenance("luwu_links.py", [], 1), "rows": rows}, indent=1) + "\n")


# --- a plain blaster


def blasted_bytes_per_s(payload_bytes: int) -> float:
    """Two processes that send datagrams without end, and one that receives them, from memory to memory."""
    from coarse.luwu.datagrams import DatagramLink

    receivers = [DatagramLink() for _ in range(NUM_SENDERS)]
    senders = []
    for receiver in receivers:
        link = DatagramLink()
        receiver.connect("127.0.0.1", link.port)
        if (process := os.fork()) == 0:
            blast(link, receiver.port, payload_bytes)
        senders.append(process)
    import numpy as np

    places = np.zeros((BLASTED_BYTES >> 16, 1 << 16), np.uint8)
    received, number, begin_s = 0, 0, time.monotonic()
    while time.monotonic() - begin_s < 1.0:
        for receiver in receivers:
            for _ in range(64):
                nbytes = receiver.receive_raw(places[number % len(places)])
                if not nbytes:
                    break
                received += nbytes
                number += 1
    took_s = time.monotonic() - begin_s
    for process in senders:
        os.kill(process, 9)
        os.waitpid(process, 0)
    return received / took_s


def blast(link: DatagramLink, port: int, payload_bytes: int) -> None:
    """Send without end, as large pieces as the kernel takes."""
    import numpy as np

    from coarse.luwu.many_to_one.frames import HEADER_BYTES

    link.connect("127.0.0.1", port)
    each = payload_bytes - HEADER_BYTES
    count = BLASTED_BYTES // each
    headers = np.zeros((count, HEADER_BYTES), np.uint8)
    values = np.zeros(count * each, np.uint8)
    at_once = max(1, 65_507 // payload_bytes)
    while True:
        for begin in range(0, count, at_once):
            end = min(begin + at_once, count)
            link.send_packets(headers[begin:end], [values[begin * each : end * each]], each)
            while not link.flush():
                time.sleep(1e-5)


# --- models in the network


def measure(folder: Path, rounds: int) -> None:
    """On each rank: cases in turn, round by round; worker 0 writes medians."""
    import coarse
    import coarse.torch as ct

    ct.init()
    found: dict[str, dict[str, list[float]]] = {name: {"push": [], "pull": []} for name in (*CASES, "blaster")}
    for _ in range(rounds):
        for name, options in CASES.items():
            model = opened(options)
            for way, measured in (("push", pushed_s), ("pull", pulled_s)):
                measured(model)
                took_s = timed(partial(measured, model))
                found[name][way].append(NUM_SENDERS * NUM_UNITS * UNIT_ELEMENTS * 4 / took_s)
            model.close()
        coarse.workers_comm().Barrier()
        if coarse.rank() == 0:
            blaster = [sys.executable, __file__, "--blast", str(DATAGRAM_BYTES)]
            speed = float(subprocess.run(blaster, capture_output=True, text=True, check=True).stdout)
            found["blaster"]["push"].append(speed)
            found["blaster"]["pull"].append(speed)
        coarse.workers_comm().Barrier()
    if coarse.rank() == 0:
        (folder / "rows.json").write_text(json.dumps(rows_of(found)))


def rows_of(found: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Medians, and medians of ratios within a round."""
    rows = {}
    for name, ways in found.items():
        row = {}
        for way, speeds in ways.items():
            row[way] = median(speeds)
            for key, other in (("of_blaster", "blaster"), ("of_lossless", "udp")):
                row[f"{way}_{key}"] = median(a / b for a, b in zip(speeds, found[other][way], strict=True))
        rows[name] = row
    return rows


def opened(options: dict[str, Any]) -> RemoteModel:
    """A model of equal units whose optimizer node is in memory, on a host of its own."""
    import uuid

    import numpy as np

    from coarse.luwu.client.model import new_model
    from coarse.luwu.store.declaration import Declaration
    from coarse.luwu.store.layout import PagedModel, PagedTensor, PagedUnit
    from coarse.session import current

    units = tuple(PagedUnit(f"{n}", (PagedTensor(f"{n}.w", (UNIT_ELEMENTS,)),)) for n in range(NUM_UNITS))
    runtime = current()
    declaration = Declaration(
        model=PagedModel(units=units, num_states=0), optimizer="SGD", groups=({"lr": 0.1},),
        group_of=((0,),) * NUM_UNITS, num_workers=runtime.placement.num_clients, storage=None,
        memory_bytes=1 << 30, run=uuid.uuid4().hex, nodes=(OPTIMIZER,), **options,
    )  # fmt: skip
    model = new_model(runtime.require_client())
    model.open(declaration)
    for unit in range(NUM_UNITS):
        values = np.zeros(UNIT_ELEMENTS, np.float32) if model.client == 0 else None
        model.push_values(unit, 0, int(model.client == 0), values)
    return model


def timed(do: Callable[[], None]) -> float:
    """Of all workers, from the beginning of the last to the end of this one."""
    import coarse

    coarse.workers_comm().Barrier()
    begin_s = time.monotonic()
    do()
    coarse.workers_comm().Barrier()
    return time.monotonic() - begin_s


def pushed_s(model: RemoteModel) -> None:
    """Every unit's gradients once, until the optimizer node has them; it adds all but those in its rings meanwhile."""
    pushes = [
        model.push_gradients(unit, 1, is_last=True, room=model.room_for(unit)) for unit in range(NUM_UNITS)
    ]
    model.wait_for_push(pushes[-1], NUM_UNITS - 1)
    model.end_pass()
    model.discard()


def pulled_s(model: RemoteModel) -> None:
    """Every unit once, two under way."""
    import numpy as np

    targets = [np.empty(4 * UNIT_ELEMENTS, np.uint8) for _ in range(2)]
    under_way: list[Any] = []
    for unit in range(NUM_UNITS):
        if len(under_way) == 2:
            model.wait_for_pull(under_way.pop(0))
        under_way.append(model.pull(unit, targets[unit % 2]))
    for pulled in under_way:
        model.wait_for_pull(pulled)


if __name__ == "__main__":
    main()
