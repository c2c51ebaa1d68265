"""Jobs of Slurm on two kernels: the lines of docs/cluster.md, with as many ranks as two guests have memory for."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.initramfs import SHARE
from tests.hosts.jobs import BIN, PROGRAMS, written
from tests.hosts.pair import Pair, require_sums
from tests.hosts.slurm import batch_file_of_docs, run_line, start_slurm

SUMS = PROGRAMS / "sums.py"
TWO_EACH = "--nodes=2 --ntasks-per-node=2"
ARRAY_BYTES = 32 << 20
SMALLER = {
    "--ntasks-per-node=4": "--ntasks-per-node=2", "ppr:4:node": "ppr:2:node", "--time=04:00:00": "--time=3",
    "USR1@300": "USR1@90",
}  # fmt: skip
"""Lines of docs for two guests and few minutes. Slurm may signal a minute earlier than asked, so after 30 s or more."""


@pytest.fixture(scope="module")
def pair(images: dict[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("slurm"), images) as pair:
        start_slurm(pair)
        yield pair


def test_mpirun_within_salloc_finds_the_nodes(pair: Pair) -> None:
    line = f".venv/bin/mpirun -n 4 --map-by ppr:2:node --bind-to none .venv/bin/python {SUMS}"
    require_sums(run_line(pair, f"salloc {TWO_EACH} --cpus-per-task=2 {line}").checked())


def test_srun_starts_ranks_by_pmix(pair: Pair) -> None:
    require_sums(run_line(pair, f"srun --mpi=pmix {TWO_EACH} .venv/bin/python {SUMS}").checked())


def test_plain_srun_is_refused_with_what_to_type(pair: Pair) -> None:
    ran = run_line(pair, f"srun {TWO_EACH} .venv/bin/python {SUMS}")
    assert ran.status not in (0, None), ran.output
    assert ran.output.count("ConfigError: rank") == 4
    assert "start it by srun --mpi=pmix" in ran.output


def test_torchrun_below_srun_has_memory_devices_in_a_step_of_its_own(pair: Pair) -> None:
    settings = 'startup_timeout_s = 300\n[launch]\ndevices = 1\nhosts = ["node1", "node2"]\n'
    torchrun = (
        ".venv/bin/torchrun --nnodes 2 --nproc-per-node 2 --node-rank $SLURM_NODEID --master-addr node1 "
        f"--master-port 29511 {PROGRAMS / 'torch_sum.py'}"
    )
    one_each = "--nodes=2 --ntasks-per-node=1 --cpus-per-task=4 --mem=1900"
    line = f"salloc {one_each} srun --mpi=none --overlap bash -c '{torchrun}'"
    ran = run_line(pair, line, timeout_s=600, COARSE_CONFIG=written(pair.first, "torchrun.toml", settings))
    assert sorted(re.findall(r"worker (\d) of 4: 10.0", ran.checked())) == ["0", "1", "2", "3"]


def test_a_batch_file_is_signalled_before_its_time_limit_and_goes_on_when_requeued(pair: Pair) -> None:
    batch = batch_file_of_docs()
    program = f"{PROGRAMS / 'preempted.py'} 50 {SHARE}/kept"
    for line, ours in {**SMALLER, "train.py": program, "%x-%j.out": "batch.out"}.items():
        assert batch.count(line) == 1, line
        batch = batch.replace(line, ours)
    written(pair.first, "coarse.toml", "startup_timeout_s = 200\n")
    written(pair.first, "batch.sh", batch.replace(".venv/bin", str(BIN)))
    wait = "until grep -qs 'worker 0 is done' batch.out; do sleep 2; done"
    run_line(pair, f"cd {SHARE} && sbatch batch.sh && {wait}", timeout_s=420).checked()
    printed = (pair.share / "batch.out").read_text()
    begun, stopped = (re.findall(rf"worker 0 {word} at step (\d+)", printed) for word in ("begins", "stops"))
    assert len(stopped) >= 1, printed
    assert begun == ["0", *stopped], printed
    last, total = map(int, re.search(r"worker 0 is done at step (\d+) with (\d+)", printed).groups())
    assert total == last * (last - 1)  # two workers add 0, 1, 2, ...


def test_a_job_beyond_the_memory_it_asked_for_gets_an_error_that_names_its_group(pair: Pair) -> None:
    program = f".venv/bin/python {PROGRAMS / 'large.py'} {ARRAY_BYTES} 100"
    ran = run_line(pair, f"srun --mpi=pmix --nodes=1 --ntasks=2 --mem=700 {program}")
    assert ran.status not in (0, None), ran.output
    assert re.search(r"worker 0 got CapacityError at array \d+: .*control group /system.slice/.*/job_\d+ is limited to "
                     rf"{700 << 20} bytes; raise that by --mem of Slurm", ran.output), ran.output  # fmt: skip


def test_check_names_the_memory_of_a_job(pair: Pair) -> None:
    printed = run_line(pair, "srun --ntasks=1 --mem=700 .venv/bin/python -m coarse check").checked()
    assert f"limited to {700 << 20} bytes" in " ".join(re.sub("[│\n]", " ", printed).split())
