"""The command line of mpirun, worked out by hand."""

import pytest

from coarse.errors import ConfigError
from coarse.launch import AppContext, TrainingRun, missing_defaults, mpirun_argv, mpirun_beside


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def test_workers_run_the_script_and_devices_only_serve(script):
    request = TrainingRun(script=script, arguments=("--lr", "0.1"), workers=4, devices=2)
    assert request.contexts("python") == (
        AppContext(num_ranks=4, command=("python", script, "--lr", "0.1")),
        AppContext(num_ranks=2, command=("python", "-m", "coarse.device")),
    )


def test_only_what_was_asked_for_is_exported(script):
    assert TrainingRun(script=script).exports() == {"COARSE_PARTITION": "2:2"}
    assert TrainingRun(script=script, workers=3, devices=1, mode="allreduce", config_path="/c.toml").exports() == {
        "COARSE_PARTITION": "3:1",
        "COARSE_MODE": "allreduce",
        "COARSE_CONFIG": "/c.toml",
    }


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


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"workers": 0}, "--workers must be at least 1, got 0"),
        ({"devices": 0}, "--devices must be at least 1, got 0"),
        ({"script": "absent.py"}, "no script 'absent.py'"),
    ],
)
def test_a_run_that_cannot_be_names_what_is_wrong(script, changed, message):
    with pytest.raises(ConfigError, match=message):
        TrainingRun(**{"script": script, **changed})


def test_mpirun_is_taken_from_the_interpreters_environment_first(tmp_path):
    for folder in ("env", "path"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mpirun").touch(mode=0o755)
    environ = {"PATH": str(tmp_path / "path")}
    assert mpirun_beside(str(tmp_path / "env" / "python"), environ) == str(tmp_path / "env" / "mpirun")
    assert mpirun_beside(str(tmp_path / "other" / "python"), environ) == str(tmp_path / "path" / "mpirun")
    with pytest.raises(ConfigError, match="install Open MPI"):
        mpirun_beside(str(tmp_path / "other" / "python"), {"PATH": str(tmp_path)})


def test_a_default_counts_from_the_file_or_the_environment_but_not_from_a_comment():
    both = "rmaps_default_mapping_policy = :oversubscribe\nhwloc_default_binding_policy=none\n"
    assert missing_defaults(both, {}) == {}
    assert set(missing_defaults("# " + both, {})) == {"rmaps_default_mapping_policy"}
    assert set(missing_defaults("", {"PRTE_MCA_rmaps_default_mapping_policy": "slot:OVERSUBSCRIBE"})) == {
        "hwloc_default_binding_policy"
    }
