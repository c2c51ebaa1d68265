"""The benchmark on GPUs: its layout, its table, and what it refuses; it measures nothing without a GPU."""

import pytest

from benchmarks.gpu import StepRow, SyncRow, lines_of, parse_arguments, table
from coarse.protocol.partition_file import partition_from_toml
from coarse.protocol.place import Anywhere, GpuMemory


@pytest.mark.parametrize(("num_gpus", "devices"), [(1, (0, 0)), (2, (0, 1)), (4, (2, 3))])
def test_gpus_are_dealt_to_workers_and_then_to_devices(tmp_path, num_gpus, devices):
    (tmp_path / "p.toml").write_text(table(4, num_gpus, "gpu"))
    partition = partition_from_toml(tmp_path / "p.toml", ["a"] * 4)
    assert partition.workers == (0, 1)
    assert [partition.places[rank].memory for rank in partition.devices] == [GpuMemory(number) for number in devices]


def test_devices_may_be_on_the_host(tmp_path):
    (tmp_path / "p.toml").write_text(table(2, 1, "host"))
    assert partition_from_toml(tmp_path / "p.toml", ["a"] * 2).places[1].memory == Anywhere()


def test_the_table_shows_milliseconds_beside_the_gpu_s_own_copy():
    row = SyncRow(nbytes=1 << 20, coarse_s=0.004, gloo_s=0.008, copy_s=0.001)
    times = {"coarse_s": 0.105, "alone_s": 0.1, "ddp_gloo_s": 0.2, "ddp_coarse_s": 0.15}
    lines = lines_of([row], StepRow(**times, ddp_nccl_s=None))
    assert lines[1].split() == ["1.00", "4.000", "8.000", "1.000", "4.0"]
    assert "exposed 5.0 ms; DDP on Gloo 200.0 ms, on the backend coarse 150.0 ms" in lines[2]
    assert lines[2].endswith("on NCCL none: it wants a GPU for each worker")
    assert lines_of([], StepRow(**times, ddp_nccl_s=0.11))[-1].endswith("on NCCL 110.0 ms")


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--memory", "disk"], ["--batch", "x"]])
def test_wrong_options_end_with_2(arguments):
    with pytest.raises(SystemExit) as ended:
        parse_arguments(arguments)
    assert ended.value.code == 2
