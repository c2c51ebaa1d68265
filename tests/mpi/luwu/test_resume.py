"""A run whose ranks are killed goes on from its last committed step, and ends with the undisturbed run's bits."""

import json
import re
from pathlib import Path

import pytest

from tests.support.launch import Completed, mpirun

HERE = Path(__file__).parent
STEPS = 7
WORKERS, RANKS = 2, 3


def run(folder: Path, *options: str) -> Completed:
    return mpirun(RANKS, HERE / "resumed.py", folder, STEPS, *options, env=environ(folder), ulfm=True, timeout_s=90)


def environ(folder: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(f'stall_timeout_s = 20\npartition = "{WORKERS}:{RANKS - WORKERS}"\n')
    return {"COARSE_CONFIG": str(folder / "config.toml")}


def ends(folder: Path) -> list[dict[str, object]]:
    return [json.loads((folder / f"end{worker}.json").read_text()) for worker in range(WORKERS)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, object]]]:
    """How runs end that nobody disturbs, by how they update."""
    found = {}
    for update in ("step", "backward"):
        folder = tmp_path_factory.mktemp(update)
        done = run(folder, f"update={update}")
        assert done.returncode == 0, done.stderr
        found[update] = ends(folder)
    assert found["step"] == found["backward"]
    return found


@pytest.mark.parametrize(
    ("victim", "step", "options"),
    [
        pytest.param(0, 3, (), id="worker 0"),
        pytest.param(1, 5, ("update=backward",), id="worker 1, in backward"),
        pytest.param(2, 4, (), id="the memory device"),
        pytest.param(2, 6, ("update=backward",), id="the memory device, in backward", marks=pytest.mark.test_all),
        pytest.param(2, 6, ("every=3",), id="the memory device, between commits"),
    ],
)
def test_a_killed_rank_costs_no_bit(victim, step, options, undisturbed, tmp_path):
    killed = run(tmp_path, f"kill={victim}@{step}", *options)
    assert killed.returncode != 0
    assert not list(tmp_path.glob("end*"))
    texts = [path.read_text() for path in tmp_path.glob("error*")]
    assert texts
    for text in texts:
        assert re.match(r"DeadRankError: .*step \d is the last committed one: resume=True goes on", text), text
    again = run(tmp_path, "resume", *options)
    assert again.returncode == 0, again.stderr
    found = ends(tmp_path)
    every = 3 if "every=3" in options else 1
    assert found[0]["resumed"] in {done // every * every for done in (step - 2, step - 1, step)}
    for one, other in zip(found, undisturbed["step"], strict=True):
        assert {**one, "resumed": 0} == other
