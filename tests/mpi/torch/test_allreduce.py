"""The workers' all-reduce ends with the ranks that it is made of, whatever has them sum gradients."""

import json
from itertools import product
from pathlib import Path

import pytest

from tests.support.claims import IN_TIME_S
from tests.support.launch import mpirun, running
from tests.support.layouts import parameters

HERE = Path(__file__).parent
ENDS = {
    "kill": "worker 1 (MPI rank 1) died",
    "raise": "MPI rank 1 raised ArithmeticError: the worker is broken",
}


IN_MAKE_TEST = {("kill", "allreduce"), ("kill", "half"), ("raise", "none"), ("raise", "measured")}
"""Every way once, and each end for a way whose devices add and for one whose devices do not."""
ENDINGS = [
    pytest.param(*ending, marks=() if ending in IN_MAKE_TEST else pytest.mark.test_all)
    for ending in product(ENDS, ("allreduce", "none", "half", "measured"))
]


@pytest.mark.parametrize(("how", "way"), ENDINGS)
def test_under_ulfm_the_survivor_of_an_all_reduce_names_the_rank_that_ended(tmp_path, how, way):
    completed = mpirun(
        4, HERE / "ended_in_allreduce.py", how, way, tmp_path, ulfm=True, timeout_s=60, preloaded="torch"
    )
    assert completed.returncode != 0
    found = json.loads((tmp_path / "rank0.json").read_text())
    assert found["kind"] == "DeadRankError", found["text"]
    assert found["dead_rank"] == 1
    assert ENDS[how] in found["text"]
    assert found["waited_s"] < IN_TIME_S
    assert not running(int(path.read_text()) for path in tmp_path.glob("pid*"))


@pytest.mark.parametrize("way", parameters(["allreduce", "ddp", "fsdp"], {"ddp", "fsdp"}))
def test_a_worker_that_leaves_amid_training_is_named_by_all_who_need_it(tmp_path, way):
    environ = {"COARSE_PARTITION": "3:1"}
    mpirun(4, HERE / "left_training.py", tmp_path, way, env=environ, ulfm=True, timeout_s=60, preloaded="torch")
    for rank in (0, 2):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert found["kind"] == ("RuntimeError" if way == "ddp" else "DeadRankError"), found["text"]
        assert "rank 1 (MPI rank 1) has shut down" in found["text"]
        assert found["waited_s"] < IN_TIME_S
