import pytest

from benchmarks import step, sync


def test_sync_measures_sizes_and_models_by_default():
    options = sync.parse_options([])
    names = [workload.name for workload in options.workloads]
    assert names[-4:] == ["200-small", "200-small-group", "resnet50", "bert-large"]
    assert options.name == "sync-2-2"


def test_step_sweeps_batch_sizes_by_default():
    assert step.parse_options([]).rows == [1, 2, 4, 8, 16, 32]


@pytest.mark.parametrize(
    ("script", "arguments", "complaint"),
    [
        (sync, ["--contenders", "gloo,nccl"], "unknown contenders nccl"),
        (sync, ["--sizes", "4KB"], "a size is a positive multiple"),
        (step, ["--rows", "2,0"], "positive numbers"),
        (step, ["--contenders", "ddp"], "'none' must be among"),
    ],
)
def test_a_bad_option_is_refused_with_what_is_allowed(script, arguments, complaint, capsys):
    with pytest.raises(SystemExit):
        script.parse_options(arguments)
    assert complaint in capsys.readouterr().err


def test_memory_is_asked_for_by_the_contenders_that_have_regions():
    from benchmarks.sync import needed_bytes

    assert needed_bytes(10, 4, ["gloo", "openmpi", "memcpy"]) == 80
    assert needed_bytes(10, 4, ["gloo", "coarse-device", "memcpy"]) == 120
    assert needed_bytes(10, 2, ["coarse", "coarse-device", "bare"]) == 100
