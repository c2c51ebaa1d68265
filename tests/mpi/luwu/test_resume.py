"""A run whose ranks are killed goes on from its last committed step, and ends with the undisturbed run's bits."""

import json
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest

from tests.mpi.luwu.test_network import started
from tests.support.launch import Completed, mpirun

HERE = Path(__file__).parent
STEPS = 7
WORKERS, RANKS = 2, 3


def run(folder: Path, *options: str) -> Completed:
    return mpirun(
        RANKS, HERE / "resumed.py", folder, STEPS, *options, env=environ(folder), ulfm=True, timeout_s=90,
        preloaded="torch",
    )  # fmt: skip


def environ(folder: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(f'stall_timeout_s = 20\npartition = "{WORKERS}:{RANKS - WORKERS}"\n')
    return {"COARSE_CONFIG": str(folder / "config.toml")}


def ends(folder: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("end*"))]


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
    require_resumed(partial(run, tmp_path), tmp_path, victim, step, options, undisturbed["step"])


def require_resumed(run_again, folder, victim, step, options, undisturbed):
    """A run in which a rank is killed, and the one that goes on, end as the undisturbed one did."""
    killed = run_again(f"kill={victim}@{step}", *options)
    assert killed.returncode != 0
    assert not list(folder.glob("end*"))
    texts = [path.read_text() for path in folder.glob("error*")]
    assert texts
    for text in texts:
        assert re.match(r"DeadRankError: .*step \d is the last committed one: resume=True goes on", text), text
    again = run_again("resume", *options)
    assert again.returncode == 0, again.stderr
    found = ends(folder)
    every = 3 if "every=3" in options else 1
    assert found[0]["resumed"] in {done // every * every for done in (step - 2, step - 1, step)}
    for one, other in zip(found, undisturbed, strict=True):
        assert {**one, "resumed": 0} == other


def between_hosts(folder: Path, *options: str) -> Completed:
    return started(folder, HERE / "resumed.py", STEPS, *options, ulfm=True, timeout_s=90, preloaded="torch")


@pytest.fixture(scope="module")
def undisturbed_hosts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, object]]]:
    """How runs on several hosts end that nobody disturbs, by how they add."""

    @cache
    def undisturbed(how: str) -> list[dict[str, object]]:
        folder = tmp_path_factory.mktemp(how)
        done = between_hosts(folder, "network=mpi", f"sum={how}")
        assert done.returncode == 0, done.stderr
        return ends(folder)

    return undisturbed


@pytest.mark.parametrize(
    ("victim", "network", "how"),
    [
        pytest.param(6, "udp", "int64", id="the optimizer node, adding integers", marks=pytest.mark.test_all),
        pytest.param(4, "mpi", "int64", id="a host's device, adding integers", marks=pytest.mark.test_all),
        pytest.param(6, "mpi", "float32", id="the optimizer node", marks=pytest.mark.test_all),
        pytest.param(5, "udp", "float32", id="the switch", marks=pytest.mark.test_all),
        pytest.param(3, "mpi", "int64", id="a worker, adding integers", marks=pytest.mark.test_all),
    ],
)
def test_a_rank_that_is_killed_on_another_host_costs_no_bit(victim, network, how, undisturbed_hosts, tmp_path):
    options = (f"network={network}", f"sum={how}")
    require_resumed(partial(between_hosts, tmp_path), tmp_path, victim, 4, options, undisturbed_hosts(how))
