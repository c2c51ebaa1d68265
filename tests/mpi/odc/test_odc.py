"""Mode odc on one node and on two, with and without what nodes keep; and with a worker that stops, stalls or dies."""

import json
from pathlib import Path

import pytest

from tests.support.claims import IN_TIME_S, claims_of, read_reports, require_held, takes_all
from tests.support.launch import mpirun
from tests.support.layouts import parameters, partition_table

HERE = Path(__file__).parent
CLAIMS = claims_of(HERE / "odc_claims.py")
ONE, BOTH, APART = (2, 2, 1, False), (4, 4, 2, True), (4, 2, 2, False)
"""(Workers, devices, nodes, whether devices are workers too)."""
JOBS = {
    "one node": (ONE, "none"), "two nodes": (BOTH, "none"), "two nodes, cache": (APART, "all"),
    "two nodes, some cache": (BOTH, "some"), "two nodes, light devices": (APART, "none"),
    "two nodes, cache in workers": (BOTH, "all"),
}  # fmt: skip
IN_MAKE_TEST = {"two nodes", "two nodes, cache"}
ABOUT_BITS = set() if takes_all() else {"two nodes"}
"""Jobs that check the bits of trainings and no other claims."""
_digests: dict[tuple[int, int], dict[str, str]] = {}
"""(Workers, nodes) -> job -> the bits of a training."""


def folder_with(folder: Path, layout: tuple[int, int, int, bool], settings: str) -> dict[str, str]:
    workers, devices, nodes, is_both = layout
    (folder / "partition.toml").write_text(partition_table(workers, devices, num_nodes=nodes, is_both=is_both))
    (folder / "config.toml").write_text(f'partition = "partition.toml"\n{settings}')
    return {"COARSE_CONFIG": str(folder / "config.toml")}


def ranks_of(layout: tuple[int, int, int, bool]) -> int:
    workers, devices, _, is_both = layout
    return workers if is_both else workers + devices


@pytest.fixture(scope="module", params=parameters(JOBS, IN_MAKE_TEST))
def job(request, tmp_path_factory):
    """The job's name, and by claim what each worker found."""
    folder = tmp_path_factory.mktemp("odc")
    layout, cache = JOBS[request.param]
    environ = folder_with(folder, layout, "stall_timeout_s = 20\ndevice_capacity_bytes = 67108864\n")
    completed = mpirun(
        ranks_of(layout), HERE / "odc_claims.py", folder, cache, *(["bits"] if request.param in ABOUT_BITS else []),
        env=environ, timeout_s=240, joins_first=not layout[3], preloaded="torch",
    )
    assert completed.returncode == 0, completed.stderr
    digests = {json.loads((folder / f"digest{rank}.json").read_text()) for rank in range(layout[0])}
    assert len(digests) == 1
    _digests.setdefault((layout[0], layout[2]), {})[request.param] = digests.pop()
    return request.param, read_reports(folder, layout[0])


def test_every_claim_holds(job):
    name, reports = job
    if name not in ABOUT_BITS:
        assert set(reports) == set(CLAIMS)
    require_held(reports, reports)


@pytest.mark.skipif(not takes_all(), reason="minutes; make test-all")
@pytest.mark.parametrize("cache", ["none", "all"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_every_claim_holds_on_a_machine_that_is_not_here(nodes, cache, tmp_path):
    environ = folder_with(tmp_path, (4, 2, 1, False), "stall_timeout_s = 20\ndevice_capacity_bytes = 67108864\n")
    environ["COARSE_EMULATE"] = f'machine = "aws-p3", out = "{tmp_path}", nodes = {nodes}'
    completed = mpirun(6, HERE / "odc_claims.py", tmp_path, cache, env=environ, timeout_s=480, preloaded="torch")
    assert completed.returncode == 0, completed.stderr
    reports = read_reports(tmp_path, 4)
    assert set(reports) == set(CLAIMS)
    require_held(reports, reports)
    assert json.loads((tmp_path / "run.json").read_text())["num_late"] == 0


def test_the_bits_are_the_same_with_and_without_what_nodes_keep(job):
    for by_job in _digests.values():
        assert len(set(by_job.values())) == 1, by_job


def test_rollouts_of_unequal_length_train_a_policy(tmp_path):
    environ = folder_with(tmp_path, (2, 1, 1, False), "")
    completed = mpirun(3, HERE / "rollout_claims.py", tmp_path, env=environ, timeout_s=120, preloaded="torch")
    assert completed.returncode == 0, completed.stderr
    claims = claims_of(HERE / "rollout_claims.py")
    reports = read_reports(tmp_path, 2)
    assert set(reports) == set(claims)
    require_held(reports, claims)


@pytest.mark.skipif(not takes_all(), reason="a training; make test-all")
def test_every_answer_is_right_after_a_hundred_steps(tmp_path):
    script = HERE.parents[2] / "experiments" / "grpo_counting.py"
    completed = mpirun(3, script, env=folder_with(tmp_path, (2, 1, 1, False), ""), timeout_s=240, preloaded="torch")
    assert completed.returncode == 0, completed.stderr
    assert "100% of the likeliest answers right" in completed.stdout


SLOW_JOBS = {
    "one node": ((2, 1, 1, False), "none"), "two nodes": (APART, "none"), "two nodes, cache": (APART, "all"),
}  # fmt: skip


@pytest.mark.parametrize("name", parameters(SLOW_JOBS, {"two nodes, cache"}))
def test_a_worker_that_stops_stalls_or_dies(name, tmp_path):
    layout, cache = SLOW_JOBS[name]
    environ = folder_with(tmp_path, layout, "stall_timeout_s = 20\n")
    completed = mpirun(
        ranks_of(layout), HERE / "slow_worker.py", tmp_path, cache, env=environ, timeout_s=120, ulfm=True,
        joins_first=True, preloaded="torch",
    )  # fmt: skip
    assert completed.returncode != 0  # one was killed
    reports = [tmp_path / f"worker{rank}.json" for rank in range(layout[0])]
    assert all(report.exists() for report in reports), completed.stderr
    assert len({report.read_text() for report in reports}) == 1
    errors = [json.loads(path.read_text()) for path in tmp_path.glob("rank*.json")]
    assert len(errors) == layout[0] - 1, completed.stderr
    for error in errors:
        assert error["kind"] == "DeadRankError"
        assert "worker 1" in error["text"]
        assert error["waited_s"] < IN_TIME_S
