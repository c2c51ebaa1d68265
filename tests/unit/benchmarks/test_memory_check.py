import pytest

from benchmarks.memory_check import available_memory_bytes, require_memory


def test_available_memory_is_read_in_bytes():
    assert available_memory_bytes("MemTotal: 9 kB\nMemAvailable:    1024 kB\n") == 2**20


def test_an_old_kernel_is_named():
    with pytest.raises(ValueError, match="MemAvailable"):
        available_memory_bytes("MemTotal: 9 kB\n")


def test_a_workload_beyond_the_machine_is_refused_with_the_remedy():
    with pytest.raises(MemoryError, match=r"huge needs .* choose smaller --sizes and --sets"):
        require_memory(2**60, "huge")
