"""What others measured of pools over CXL, simulated: CCCL's collectives and cMPI's latency.

    python -m experiments.cxl_pool.validate [--out results/validation] [--docs docs/pool_validation.md]

Kind of all results: simulated. See docs/predict.md for the model of a pool.
"""

from pathlib import Path
from types import ModuleType

from rich.console import Console

from experiments.coarse_paper.claims import ClaimRow
from experiments.coarse_paper.inputs import ASSUMED, SOURCED, Declared
from experiments.coarse_paper.script import claims_table
from experiments.coarse_paper.validate import RESULTS, main, section, summary
from experiments.cxl_pool import cccl, cmpi
from experiments.cxl_pool.collectives import Primitive
from experiments.gpt.rows import write_json

COMMAND = "python -m experiments.cxl_pool.validate"
SOURCES: dict[str, tuple[ModuleType, tuple[Declared, ...]]] = {
    "CCCL (arXiv 2602.22457)": (
        cccl,
        (
            Declared("ports", "55 GB/s each way", ASSUMED, "PCIe 5 x16, less headers"),
            Declared("devices", "six of 36 GB/s, 0.21 us", SOURCED, "vendor's MLC figure; latency assumed"),
            Declared("stores", "26.8 GB/s a node", f"fitted to {Primitive.SCATTER}", "its mean ratio of 1.04"),
            Declared("InfiniBand", "24.5 GB/s, 5 us a step", ASSUMED, "200 Gbit/s, less headers; NCCL's rings"),
            Declared("chunks", "4 MiB", ASSUMED, "what is stored before a doorbell, and what a ring hands on"),
            Declared("sizes", "1 MiB to 4 GiB", ASSUMED, "the abstract names means and no sizes"),
        ),
    ),
    "cMPI (arXiv 2510.05476)": (
        cmpi,
        (
            Declared("Niagara 2.0", "0.79 us; 2.2 us and 9.5 GB/s with flushes", SOURCED, "cMPI"),
            Declared("TCP", "16 us over Ethernet, 18 us over a ConnectX-6", SOURCED, "cMPI"),
        ),
    ),
}


def run(console: Console, *, out: Path = RESULTS, docs: Path | None = None) -> int:
    """Print the tables and write results; 0, since a miss is a result and not a failure."""
    found = {source: script.rows() for source, (script, _) in SOURCES.items()}
    for source, rows in found.items():
        console.print(claims_table(rows, f"{source}: claims and ours"))
        console.print(summary(rows))
    results = out / "pool_validation.json"
    documents = [{"paper": source, **row.document()} for source, rows in found.items() for row in rows]
    write_json(results, {"command": COMMAND, "kind": "simulated", "rows": documents})
    console.print(f"written to {results}")
    if docs is not None:
        docs.write_text(page(found), encoding="utf-8")
        console.print(f"written to {docs}")
    return 0


def page(found: dict[str, list[ClaimRow]]) -> str:
    """docs/pool_validation.md."""
    lines = [
        "# Validation of pools",
        "",
        f"Made by `{COMMAND} --docs docs/pool_validation.md`; do not edit. [predict.md](predict.md#other-machines) has "
        "the model. Of both papers the abstracts and published summaries were at hand, not the measurements.",
    ]
    for source, rows in found.items():
        lines += section(source, rows, SOURCES[source][1])
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    raise SystemExit(main(run, __doc__))
