"""Fine-tuning gives the losses of one process, whatever the family, the mode, and what is trained."""

import math
import re
from itertools import product
from pathlib import Path

import pytest

from tests.support.claims import claims_of, read_reports, takes_all
from tests.support.launch import REPOSITORY, mpirun

HERE = Path(__file__).parent
NUM_WORKERS = 2
PARTITION = "".join(f'[[rank]]\nrank = {rank}\nrole = "both"\nnode = "node{rank}"\n' for rank in range(NUM_WORKERS))
"""Each worker is a memory device too, and stands on a node of its own."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What each worker found of each claim, in one job of two workers."""
    folder = tmp_path_factory.mktemp("finetune")
    (folder / "partition.toml").write_text(PARTITION)
    environ = {"COARSE_PARTITION": str(folder / "partition.toml")}
    completed = mpirun(
        NUM_WORKERS, HERE / "finetune_claims.py", folder, env=environ, timeout_s=180.0, preloaded="torch"
    )
    assert completed.returncode == 0, completed.stderr
    return read_reports(folder, NUM_WORKERS)


FAMILIES = ("gpt2", "opt", "bert")
CLAIMS = [*claims_of(HERE / "finetune_claims.py"), *claims_of(HERE / "library_claims.py")]
"""By name: importing transformers takes seconds."""


def ways_of(reports):
    return sorted(reports.keys() - set(CLAIMS))


def test_every_claim_is_among_the_tests(reports):
    assert reports.keys() > set(CLAIMS)
    ways = [set(way.split("_")) for way in ways_of(reports)]
    assert set().union(*ways) >= {*FAMILIES, "all", "lora", "fsdp", "fcdp"}
    pairs = (*product(FAMILIES, ("all", "lora")), *product(FAMILIES, ("fsdp", "fcdp")))
    for pair in pairs if takes_all() else ():
        assert any(set(pair) <= way for way in ways), pair


def test_each_way_trains_as_one_process(reports):
    for name in ways_of(reports):
        for rank, failure in enumerate(reports[name]):
            assert not failure, f"{name}, worker {rank}:\n{failure}"


@pytest.mark.parametrize("name", CLAIMS)
def test_two_workers_train_as_one_process(reports, name):
    for rank, failure in enumerate(reports[name]):
        assert not failure, f"worker {rank}:\n{failure}"


def test_the_script_trains_and_writes_what_it_measured(tmp_path):
    script = REPOSITORY / "experiments" / "finetune.py"
    small = ["--family", "opt", "--lora", "--steps", "2", "--batch", "4", "--length", "48", "--doc-stride", "24"]
    environ = {"COARSE_PARTITION": "2:1"}
    completed = mpirun(3, script, "--mode", "fcdp", *small, "--out", tmp_path, env=environ, preloaded="torch")
    assert completed.returncode == 0, completed.stderr
    losses = re.findall(r"^step \d/2  loss (\S+) ", completed.stdout, re.MULTILINE)
    assert [float(loss) for loss in losses] == pytest.approx([math.log(48)] * 2, rel=0.2)
    assert "fcdp, 2 workers: " in completed.stdout
    assert "on 57 questions of everyday_questions.json" in completed.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fcdp-worker0.json", "fcdp-worker1.json"]
