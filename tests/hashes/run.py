"""Hashes of what must keep its bits: training results, simulated traces, and what the commands print and write.

    python -m tests.hashes.run            # compare with hashes.json; another hash is named, and the status is 1
    python -m tests.hashes.run --write    # write it anew, after a change that is meant

A change that only moves or renames code leaves all of them as they are. Training results are those of this processor
(its instructions decide the order in which a matrix product is summed), so on another one compare two commits.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from coarse.storage.processor import cpu_name
from tests.support.launch import mpirun

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
RESULTS = HERE / "hashes.json"
COARSE = (sys.executable, "-m", "coarse")
LIMIT_S = 600.0
ARITHMETIC = {
    "OMP_NUM_THREADS": "1",
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
}
"""What makes results depend on as little of the machine as can be."""

BUCKETS = "bucket_bytes = 50_000\n"
FIXED = '[routing]\npolicy = "fixed"\nthreshold_bytes = 4096\npartition_bytes = 65_536\n'
BY_DEVICES = f'policy = "devices"\n{FIXED}'
LAYOUTS = {
    "1 worker, 1 device": ("1:1", BY_DEVICES),
    "2 workers, 2 devices": ("2:2", BY_DEVICES),
    "3 workers, 1 device": ("3:1", BY_DEVICES),
    "4 workers, 2 devices": ("4:2", BY_DEVICES),
    "3 workers, 3 devices, a ring": ("3:3", f'collective = "ring"\n{BY_DEVICES}'),
    "3 workers, 1 device, dense": ("3:1", 'mode = "dense"\n'),
    "3 workers, 2 devices, all-reduce": ("3:2", f'mode = "allreduce"\n{FIXED}'),
}
"""By name the partition and the rest of the configuration; nothing in it is measured."""
FACES = ("arrays", "torch", "sharded", "keras")
_FEW = ("2 workers, 2 devices", "3 workers, 1 device")
FEATURES = {"luwu": _FEW, "odc": _FEW, "switch": _FEW, "sets": _FEW[1:], "ddp": _FEW[1:], "snapshots": _FEW[:1]}
"""By face of a feature the layouts on which it trains."""

COMMANDS = {
    "predict aws-p3": ("predict", "--machine", "aws-p3", "--out", "OUT/run"),
    "predict aws-p3 paper": (
        *("predict", "--machine", "aws-p3", "--policy", "paper", "--batch", "64"),
        *("--out", "OUT/run"),
    ),
    "predict fpga": ("predict", "--machine", "coarse-fpga", "--workers", "1", "--out", "OUT/run"),
    "predict two nodes": ("predict", "--machine", "aws-p3", "--nodes", "2", "--workers", "8", "--out", "OUT/run"),
    "predict straggler": ("predict", "--machine", "cxl-type3-asic", "--straggler", "1=1.5", "--out", "OUT/run"),
    "predict degrade": (
        *("predict", "--machine", "aws-p3", "--iterations", "8", "--profile-every", "2"),
        *("--degrade", "gpu0*=0.25@0.01", "--out", "OUT/run"),
    ),
    "predict cz120": ("predict", "--machine", "cxl-cz120", "--out", "OUT/run"),
    "predict fpga3": ("predict", "--machine", "cxl-type3-fpga", "--out", "OUT/run"),
    "predict g4dn": ("predict", "--machine", "aws-g4dn", "--out", "OUT/run"),
    "predict p100": ("predict", "--machine", "sdsc-p100", "--out", "OUT/run"),
    "shard": ("shard", "--out", "OUT/shard.json"),
    "shard ring lora": ("shard", "--machine", "fcdp-a40-1gbe", "--lora-rank", "8", "--out", "OUT/shard.json"),
    "shard hierarchical": (
        *("shard", "--machine", "fcdp-a40-rdma", "--collective", "hierarchical", "--nodes", "4", "--tau", "0.5"),
        *("--recompute", "--quantised", "--out", "OUT/shard.json"),
    ),
    "sweep": ("sweep", "--vary", "workers=2,4", "--vary", "batch=16,64", "--out", "OUT/sweep"),
    "predict luwu": ("predict", "--machine", "luwu", "--model", "opt-1.3b", "--out", "OUT/run"),
}  # fmt: skip
PROGRAMS = {
    "coarse paper": ("experiments.validate", "--only", "coarse", "--out", "OUT", "--docs", "OUT/page.md"),
    "sharded papers": ("experiments.validate", "--only", "fsdp,fcdp", "--out", "OUT", "--docs", "OUT/page.md"),
    "luwu paper": ("experiments.validate", "--only", "luwu", "--out", "OUT", "--docs", "OUT/page.md"),
    "deadlock": ("experiments.coarse_deadlock",),
    "chakra": ("tests.hashes.chakra", "OUT"),
    "decisions": ("tests.hashes.decisions",),
}


def trained(layout: str, face: str) -> str:
    """The hash of what a face's training ends with on a layout."""
    partition, settings = LAYOUTS[layout]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "coarse.toml"
        config.write_text(f'partition = "{partition}"\n{BUCKETS}{settings}')
        num_ranks = sum(map(int, partition.split(":")))
        environ = {**ARITHMETIC, "COARSE_CONFIG": str(config)}
        done = mpirun(num_ranks, HERE / "training.py", folder, face, env=environ, timeout_s=LIMIT_S, preloaded="")
        if done.returncode:
            sys.exit(f"{face} on {layout} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
        return _hash((Path(folder) / "values.bin").read_bytes())


def said(argv: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The hashes of what a command prints and of each file that it writes, pictures and their page apart."""
    with tempfile.TemporaryDirectory() as folder:
        output = _completed(tuple(word.replace("OUT", folder) for word in argv)).replace(folder, "OUT")
        yield "output", _hash(output.encode())
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file() and path.suffix not in (".png", ".html") and not path.name.startswith("."):
                yield path.name, _hash(path.read_bytes().replace(folder.encode(), b"OUT"))


def _completed(argv: tuple[str, ...]) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("COARSE_")}
    environ = {**inherited, **ARITHMETIC, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "120"}
    done = subprocess.run(
        argv, env=environ, cwd=REPOSITORY, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(argv)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def _hash(said: bytes) -> str:
    return hashlib.sha256(said).hexdigest()[:32]


def all_hashes() -> dict[str, str]:
    """By what is hashed."""
    places = {face: tuple(LAYOUTS) for face in FACES} | FEATURES
    tasks = {f"training, {layout}, {face}": (layout, face) for face in places for layout in places[face]}
    commands = {name: (*COARSE, *words) for name, words in COMMANDS.items()}
    programs = {name: (sys.executable, "-m", *words) for name, words in PROGRAMS.items()}
    with ThreadPoolExecutor(2) as pool:
        spoken = pool.map(lambda argv: dict(said(argv)), [*programs.values(), *commands.values()])
        trainings = pool.map(lambda task: trained(*task), tasks.values())
        found = dict(zip(tasks, trainings, strict=True))
        for name, parts in zip([*programs, *commands], spoken, strict=True):
            found |= {f"{name}, {part}": digest for part, digest in parts.items()}
    return found


def main() -> None:
    """Compare or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write hashes.json instead of comparing")
    options = parser.parse_args()
    found = all_hashes()
    processor = cpu_name()
    if options.write:
        record = {"command": "python -m tests.hashes.run --write", "processor": processor, "hashes": found}
        RESULTS.write_text(json.dumps(record, indent=1) + "\n")
        return
    kept = json.loads(RESULTS.read_text())
    if kept["processor"] != processor:
        print(f"training results are those of {kept['processor']}; this is {processor}")
    other = sorted(name for name in kept["hashes"].keys() | found if kept["hashes"].get(name) != found.get(name))
    print(*(f"differs: {name}" for name in other), f"{len(found) - len(other)} of {len(found)} are equal", sep="\n")
    sys.exit(bool(other))


if __name__ == "__main__":
    main()
