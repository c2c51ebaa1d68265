"""Strategies of experiments/strategies and of the page: live they are a formula, emulated what is simulated."""

import json
import os
import re
from pathlib import Path

import pytest

from coarse.emulation.launch import run_order
from coarse.emulation.order import EmulationOrder
from coarse.simulation.training import simulate
from coarse.strategy.named_sharding import sharding_named
from coarse.strategy.sharding import LIVE, gathers
from tests.support.emulated import durations
from tests.support.launch import REPOSITORY, mpirun
from tests.support.layouts import partition_table

HERE = Path(__file__).parent
EXAMPLES = REPOSITORY / "experiments" / "strategies"
SERVER = f"{EXAMPLES / 'hierarchical.py'}:HierarchicalServer"
BY_LOAD = f"{EXAMPLES / 'load_aware.py'}:LoadAware"
TOP_K = f"{EXAMPLES / 'top_k.py'}:TopKGradients"
DELAYED = f"{EXAMPLES / 'delayed.py'}:Delayed"
FROZEN_ON_HOST = f"{EXAMPLES / 'frozen_on_host.py'}:FrozenOnHost"
SENDING = REPOSITORY / "tests" / "support" / "sending_strategies.py"
DILOCO = f"{EXAMPLES / 'diloco.py'}:DiLoCo"
PAGE = (REPOSITORY / "docs" / "strategies.md").read_text()
PROGRAMS = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
SENT = {"signs.py": "equal", "random_places.py": "equal", "late.py": "late"}
CLASSES = {name: re.findall(r"^class (\w+)", text, re.MULTILINE)[-1] for name, text in PROGRAMS.items()}


def live(
    program: str, *arguments: object, mode: str, tmp_path: Path, settings: str = "", num_nodes: int = 2,
    workers: int = 4,
) -> None:  # fmt: skip
    """Run a program of this room on workers and as many devices, whose nodes are all on this host."""
    table, config = tmp_path / "partition.toml", tmp_path / "coarse.toml"
    table.write_text(partition_table(workers, workers, num_nodes=num_nodes))
    common = "stall_timeout_s = 30\nbucket_bytes = 20000\n"
    config.write_text(f'mode = "{mode}"\npartition = "{table}"\n{common}{settings}')
    environ = {"COARSE_CONFIG": str(config)}
    done = mpirun(2 * workers, HERE / program, *arguments, env=environ, timeout_s=120.0, preloaded="torch")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("mode", "settings"),
    [(SERVER, "[strategy]\ncut_bytes = 4096\n"), (BY_LOAD, "[routing]\nmax_partition_bytes = 65536\n")],
    ids=["hierarchical", "load-aware"],
)
def test_sums_are_those_of_one_process(mode, settings, tmp_path):
    least = "min_partition_bytes = 4096\n" if "routing" in settings else ""
    live("sums.py", mode=mode, tmp_path=tmp_path, settings=settings + least)


def test_an_optimizer_may_have_a_strategy_of_its_own(tmp_path):
    live("optimizers.py", mode="coarse", tmp_path=tmp_path, num_nodes=1)


@pytest.mark.parametrize(
    "options", [pytest.param("every = 3", marks=pytest.mark.test_all), "every = 5\nlr = 0.7\nmomentum = 0.9"]
)
def test_steps_alone_and_exchanges_are_those_of_one_process(options, tmp_path):
    live("updates.py", tmp_path / "snapshot", mode=DILOCO, tmp_path=tmp_path, settings=f"[strategy]\n{options}\n")


@pytest.mark.parametrize(
    ("what", "mode", "options"),
    [
        ("top-k", TOP_K, "share = 0.1"),
        ("late", DELAYED, "bound = 2"),
        *(
            pytest.param(*row, marks=pytest.mark.test_all)
            for row in (
                ("late", f"{SENDING}:Shared", "bound = 1\nhold_back = false"),
                ("float16", f"{SENDING}:Halves", ""),
                ("bfloat16", f"{SENDING}:Halves", 'element = "bfloat16"'),
                ("late", f"{SENDING}:Shared", "bound = 2\nhold_back = true"),
                ("late", f"{SENDING}:ByWorkers", "bound = 2"),
                ("top-k", f"{SENDING}:Shared", "share = 0.1\nhold_back = true"),
                ("top-k", f"{SENDING}:Shared", "share = 0.1\nhold_back = false"),
                ("top-k", f"{SENDING}:ByWorkers", "share = 0.1"),
            )
        ),
    ],
)
def test_wires_and_late_sums_are_those_of_one_process(what, mode, options, tmp_path):
    live("sent.py", what, mode=mode, tmp_path=tmp_path, settings=f"[strategy]\n{options}\n")


@pytest.mark.parametrize(
    ("mode", "options", "num_nodes"),
    [
        (SERVER, {}, 2),
        pytest.param(BY_LOAD, {}, 2, marks=pytest.mark.test_all),
        pytest.param(BY_LOAD, {}, 1, marks=pytest.mark.test_all),
        pytest.param(DILOCO, {"every": 2}, 1, marks=pytest.mark.test_all),
        pytest.param(DELAYED, {"bound": 2}, 1, marks=pytest.mark.test_all),
        pytest.param(
            TOP_K, {"share": 0.05, "encode_gb_per_s": 10.0, "decode_gb_per_s": 20.0}, 2, marks=pytest.mark.test_all
        ),
        pytest.param(f"{SENDING}:Halves", {"element": "bfloat16"}, 2, marks=pytest.mark.test_all),
        pytest.param(f"{SENDING}:ByWorkers", {"share": 0.05}, 1, marks=pytest.mark.test_all),
    ],
)
def test_an_emulated_iteration_takes_as_long_as_the_simulated_one(mode, options, num_nodes, monkeypatch):
    """To the last bit."""
    monkeypatch.setitem(os.environ, "OMPI_ALLOW_RUN_AS_ROOT", "1")
    monkeypatch.setitem(os.environ, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    order = EmulationOrder(
        machine="aws-p3", model="resnet50", gpu="v100", batch=64, precision="fp32", mode=mode, num_workers=2,
        num_devices=2, num_iterations=2, num_nodes=num_nodes, options=options,
    ).decided()  # fmt: skip
    emulated = run_order(order)
    assert durations(emulated) == durations(simulate(order.job()))
    assert emulated.num_late == 0


@pytest.mark.test_all
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_programs_of_the_page_train(name, tmp_path):
    path = tmp_path / name
    path.write_text(PROGRAMS[name])
    if name == "local_sgd.py":  # its formula is DiLoCo's, tested above
        return
    mode = f"{path}:{CLASSES[name]}"
    if name == "frozen_on_host.py":  # as the example of experiments/strategies, which trains elsewhere
        assert list(gathers(sharding_named(mode, LIVE))) == list(gathers(sharding_named(FROZEN_ON_HOST, LIVE)))
    elif name in SENT:
        live("sent.py", SENT[name], mode=mode, tmp_path=tmp_path)
    else:
        live("sums.py", mode=mode, tmp_path=tmp_path)


def test_a_file_fixes_what_a_run_has_decided_so_that_two_runs_have_equal_bits(tmp_path):
    decision = tmp_path / "decision.json"
    settings = f'decision = "{decision}"\npolicy = "paper"\nworker_collective = "ring"\n'
    found = []
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        live("decided.py", folder, mode="coarse", tmp_path=tmp_path, settings=settings, num_nodes=1, workers=2)
        found.append([json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)])
        written = decision.read_text()
        assert found[number] == [found[number][0]] * 2
    assert found[1] == found[2]
    assert written == decision.read_text()
    assert found[1][0]["facts"] == found[0][0]["facts"] == json.loads(written)["facts"]
    assert found[1][0]["rounds"] == found[0][0]["rounds"] == json.loads(written)["rounds"]


def test_decisions_that_cannot_be_written_are_said_and_every_rank_leaves(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    (tmp_path / "coarse.toml").write_text(f'partition = "2:1"\ndecision = "{folder}/decision.json"\n')
    environ = {"COARSE_CONFIG": str(tmp_path / "coarse.toml")}
    done = mpirun(3, HERE / "unwritable.py", folder, env=environ, timeout_s=60.0)
    assert done.returncode != 0
    assert "decision.json' cannot be written" in done.stderr
    assert "have not ended" not in done.stderr


@pytest.mark.parametrize(("rank", "said"), [(1, "rank 1"), (3, "memory device 1")])
def test_a_plan_that_one_rank_makes_otherwise_is_an_error_on_every_worker(rank, said, tmp_path):
    """A worker's, and a memory device's; with different homes, adders and numbers of shards."""
    path = tmp_path / "by_rank.py"
    path.write_text(
        "import os\nfrom dataclasses import dataclass\nfrom coarse.strategy import Coarse, ring_of_all\n\n"
        "@dataclass(frozen=True, kw_only=True)\nclass ByRank(Coarse):\n"
        "    def plan(self, tensor, cluster, facts):\n"
        f"        is_other = os.environ['OMPI_COMM_WORLD_RANK'] == '{rank}' and tensor.num_elements == 1000\n"
        "        return ring_of_all(tensor, cluster, [int(is_other)] * 2, 256 if is_other else 1 << 20)\n"
    )
    environ = {"COARSE_MODE": f"{path}:ByRank", "COARSE_PARTITION": "2:2", "COARSE_STALL_TIMEOUT_S": "20"}
    done = mpirun(4, HERE / "other_plan.py", said, env=environ, timeout_s=60.0)
    assert done.returncode == 0, done.stderr


def test_two_ranks_with_two_versions_of_a_file_are_refused(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text((EXAMPLES / "hierarchical.py").read_text())
    environ = {"COARSE_MODE": f"{path}:HierarchicalServer", "COARSE_PARTITION": "1:1"}
    done = mpirun(2, HERE / "other_file.py", path, env=environ, timeout_s=60.0)
    assert done.returncode != 0
    assert "have another file of the strategy than rank 0" in done.stderr
