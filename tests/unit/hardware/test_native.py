"""Loops of machine code, beside what numpy makes of the same arrays."""

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from coarse.errors import MeasurementError
from coarse.hardware.measure import native as native_module
from coarse.hardware.measure.native import MACHINE, Native, evict_instruction, write_back_instruction
from coarse.storage import machine_code
from coarse.storage.processor import cpu_flags

pytestmark = pytest.mark.skipif(os.uname().machine != MACHINE, reason=f"machine code of {MACHINE}")
LINE = 64
VALUE = 0x1122334455667788


def aligned(nbytes: int, byte: int = 0xFF) -> np.ndarray:
    """(nbytes,) uint8 that begins at a cache line."""
    memory = np.full(nbytes + LINE, byte, np.uint8)
    begin = -memory.__array_interface__["data"][0] % LINE
    return memory[begin : begin + nbytes]


def with_every_flush() -> list[Native]:
    """The loops with each instruction that this processor has for flushes."""
    names = cpu_flags() & {"clwb", "clflushopt", "clflush"}
    return [Native({name, "clflush"}) for name in sorted(names)]


@pytest.mark.parametrize("num_loads", [1, 2, 17, 1000])
def test_a_chase_ends_where_a_walk_from_place_to_place_ends(num_loads):
    memory = aligned(64 * LINE)
    order = np.random.default_rng(7).permutation(64)
    words = memory.view(np.int64)
    words[order * 8] = np.roll(order, -1) * LINE
    at = int(order[3]) * LINE
    found = Native(cpu_flags()).chase(memory, at, num_loads)
    for _ in range(num_loads):
        at = int(words[at // 8])
    assert found == at


@pytest.mark.parametrize("num_lines", [1, 2, 3, 512])
def test_stores_fill_every_line_and_no_byte_beside_them(num_lines):
    for native in with_every_flush():
        for store in (native.store, native.store_flushed):
            memory = aligned((num_lines + 2) * LINE)
            store(memory[LINE:-LINE], VALUE)
            expected = np.full_like(memory, 0xFF)
            expected[LINE:-LINE].view(np.int64)[:] = VALUE
            np.testing.assert_array_equal(memory, expected)


def test_loads_and_flushes_change_no_byte():
    memory = aligned(512 * LINE)
    memory[:] = np.random.default_rng(3).integers(0, 256, len(memory), np.uint8)
    before = memory.copy()
    for native in with_every_flush():
        for act in (native.load, native.flush_each, native.evict):
            act(memory)
            np.testing.assert_array_equal(memory, before)


def test_arrays_that_loops_would_run_beyond_are_refused():
    native, memory = Native(cpu_flags()), aligned(4 * LINE)
    for wrong in (memory[: LINE + 1], memory[8 : LINE + 8], memory[:0], memory[::2], memory.view(np.int64)):
        with pytest.raises(AssertionError, match="the array"):
            native.store(wrong, VALUE)


STATED = re.compile(r'^    "([0-9a-f]+)"  # (?:again: )?(.+?)(?:  .*)?$', re.MULTILINE)
"""An instruction's bytes, and what the comment beside them says, up to two spaces."""


def test_the_bytes_are_the_instructions_that_stand_beside_them(tmp_path):
    if shutil.which("objdump") is None:
        pytest.skip("no objdump")
    stated = STATED.findall(Path(native_module.__file__).read_text())
    assert len(stated) > 40
    seen = disassembled(tmp_path / "code", b"".join(bytes.fromhex(code) for code, _ in stated))
    for (_, words), instruction in zip(stated, seen, strict=True):
        # where a jump leads depends on where it stands
        assert instruction == ("jne" if words.startswith("jne") else words.replace(", ", ","))
    flushes = b"".join(map(bytes.fromhex, native_module._FLUSHES.values()))
    assert disassembled(tmp_path / "code", flushes) == ["clwb [rdi]", "clflushopt [rdi]", "ds clflush [rdi]"]


def disassembled(path: Path, code: bytes) -> list[str]:
    """The instructions that a disassembler sees, numbers in decimal, without sizes of operands."""
    path.write_bytes(code)
    command = ["objdump", "-D", "-b", "binary", "-m", "i386:x86-64", "-M", "intel", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found = []
    for line in re.findall(r"^ +[0-9a-f]+:\t[0-9a-f ]+\t(.+?)\s*$", done.stdout, re.MULTILINE):
        text = re.sub(r"(QWORD|XMMWORD|BYTE) PTR ", "", re.sub(r"\s+", " ", line)).replace("*1]", "]")
        text = re.sub(r"0x([0-9a-f]+)", lambda number: str(int(number[1], 16)), text)
        found.append("jne" if text.startswith("jne") else text)
    return found


@pytest.mark.parametrize(
    ("flags", "write_back", "evicting"),
    [
        ({"clwb", "clflushopt", "clflush"}, "clwb", "clflushopt"),
        ({"clflushopt", "clflush"}, "clflushopt", "clflushopt"),
        ({"clflush", "sse2"}, "clflush", "clflush"),
        (set(), None, None),
    ],
)
def test_flushes_are_by_the_best_instruction_that_there_is(flags, write_back, evicting):
    assert (write_back_instruction(flags), evict_instruction(flags)) == (write_back, evicting)


def test_without_instructions_for_flushes_the_other_loops_are_there():
    native = Native(set())
    assert (native.write_back, native.evicting) == (None, None)
    memory = aligned(LINE)
    native.store(memory, VALUE)
    assert (memory.view(np.int64) == VALUE).all()


def test_another_processor_is_refused_with_what_to_do():
    with pytest.raises(MeasurementError, match=r"machine code of x86_64, .* is of riscv64; state the device's figures"):
        Native(cpu_flags(), "riscv64")


def test_a_kernel_that_makes_no_memory_executable_is_told(monkeypatch):
    class Refusing:
        def mprotect(self, *_: object) -> int:
            ctypes.set_errno(13)
            return -1

    monkeypatch.setattr(machine_code.ctypes, "CDLL", lambda *_, **__: Refusing())
    with pytest.raises(MeasurementError, match=r"\(mprotect: Permission denied\).*where SELinux or seccomp allow it"):
        Native(cpu_flags())
