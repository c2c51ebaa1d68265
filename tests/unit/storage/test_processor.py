"""What the kernel says of the processor, in a tree that stands for /sys."""

import platform

import pytest

from coarse.storage import processor
from coarse.storage.processor import cpu_flags, cpu_name, last_level_bytes


@pytest.fixture
def cpus(tmp_path, monkeypatch):
    """Four cores; two and two share a third level of 32 MiB."""
    for cpu in range(4):
        alone, pair = f"{cpu}", f"{cpu // 2 * 2}-{cpu | 1}"
        caches = ((1, "48K", alone), (1, "32K", alone), (2, "2048K", alone), (3, "32M", pair))
        for index, (level, size, sharers) in enumerate(caches):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, value in {"level": level, "size": size, "shared_cpu_list": sharers}.items():
                (folder / name).write_text(f"{value}\n")
    monkeypatch.setattr(processor, "_CPUS", tmp_path)
    return tmp_path


@pytest.mark.parametrize(("cores", "mib"), [([0], 32), ([0, 1], 32), ([0, 2], 64), ([0, 1, 2, 3], 64), ([9], 0)])
def test_each_last_level_cache_that_the_cores_use_counts_once(cpus, cores, mib):
    assert last_level_bytes(cores) == mib << 20


def test_where_there_is_no_third_level_the_second_is_the_last(cpus):
    for path in cpus.glob("cpu*/cache/index3/size"):
        path.unlink()
    assert last_level_bytes([0, 1]) == 2 * (2 << 20)


def test_flags_are_those_of_the_first_core(tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu clwb clflush\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "cpuinfo")
    assert cpu_flags() == {"fpu", "clwb", "clflush"}
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    assert cpu_flags() == set()


def test_the_processor_is_named_as_the_kernel_names_it_or_by_its_architecture(tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\nflags\t: x\n")
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "cpuinfo")
    assert cpu_name() == "Some CPU @ 2.0GHz"
    (tmp_path / "cpuinfo").write_text("processor: 0\n")
    assert cpu_name() == platform.machine()
