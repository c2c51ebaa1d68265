"""The machine code that empties caches: what it is made of, and that it leaves what is stored."""

import subprocess
import sys

import numpy as np
import pytest

from coarse.errors import UnsupportedError
from coarse.pool.shared.memory import MappedPool
from coarse.protocol.units import LINE_BYTES
from coarse.storage.cache_lines import FlushedLines, flush_code


@pytest.mark.parametrize(
    ("machine", "flags", "instruction"),
    [
        ("x86_64", {"clflushopt"}, b"\x66\x0f\xae\x3f"),
        ("x86_64", set(), b"\x0f\xae\x3f\x90"),
        ("aarch64", set(), (0xD50B7E20).to_bytes(4, "little")),
    ],
)
def test_each_processor_flushes_by_its_own_instruction_and_returns(machine, flags, instruction):
    code = flush_code(machine, frozenset(flags))
    assert code.count(instruction) == 1
    assert code.endswith(b"\xc3" if machine == "x86_64" else (0xD65F03C0).to_bytes(4, "little"))


def test_another_processor_is_refused_by_name():
    with pytest.raises(UnsupportedError, match="riscv64"):
        flush_code("riscv64", frozenset())


@pytest.mark.parametrize(("begin", "nbytes"), [(0, 0), (0, 1), (63, 2), (0, 4096), (100, 3000)])
def test_a_flush_of_any_range_leaves_what_is_stored(begin, nbytes):
    memory = np.arange(8192, dtype=np.uint8)
    before = memory.copy()
    FlushedLines().flush(memory[begin : begin + nbytes])
    assert np.array_equal(memory, before)


def test_a_pool_that_is_flushed_gives_back_what_was_stored():
    pool = MappedPool(np.zeros(64 * LINE_BYTES, np.uint8), FlushedLines())
    data = np.arange(1000, dtype=np.uint8)
    pool.store(10, data)
    pool.flush(10, 1000)
    into = np.empty(1000, np.uint8)
    pool.invalidate(10, 1000)
    pool.load(10, into)
    assert np.array_equal(into, data)


def test_an_interpreter_may_end_after_it():
    program = "import numpy as np; from coarse.storage.cache_lines import FlushedLines as F; F().flush(np.ones(9))"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
