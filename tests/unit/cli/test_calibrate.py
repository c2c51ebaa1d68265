"""`coarse calibrate`: processes measure memory that stands for a device, and the file that they write is a machine."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from coarse.cli import calibrate
from coarse.cli.calibrate import app
from coarse.errors import MeasurementError
from coarse.hardware.machine_file import load_machine
from coarse.hardware.measure import memory
from coarse.hardware.measure.native import MACHINE
from coarse.protocol.units import MIB
from coarse.storage import dax
from tests.support.dax_tree import make_dax_tree

pytestmark = pytest.mark.skipif(os.uname().machine != MACHINE, reason=f"machine code of {MACHINE}")
SIZE_BYTES = 8 * MIB
QUICK = ("--seconds", "1", "--repeats", "2")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A machine whose caches are so small that 4 MiB are enough."""
    monkeypatch.setattr(calibrate, "last_level_bytes", lambda: MIB)
    monkeypatch.setattr(memory, "LEAST_BYTES", 4 * MIB)


@pytest.fixture
def pool(tmp_path):
    path = tmp_path / "pool"
    path.write_bytes(bytes(SIZE_BYTES))
    return path


def run(*arguments: object):
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_a_file_is_measured_saved_and_left_as_it_was(tmp_path, pool):
    saved = tmp_path / "machine.toml"
    done = run("--file", pool, "--save", saved, *QUICK)
    assert done.exit_code == 0, done.output
    assert "all numbers are measured" in done.output
    machine = load_machine(saved)
    assert machine.memory_device.capacity_bytes == SIZE_BYTES
    assert machine.coherence is not None
    assert 1e-9 < machine.coherence.latency_s < 1e-3
    assert 1e6 < machine.coherence.load_bytes_per_s < 1e13
    assert pool.read_bytes() == bytes(SIZE_BYTES)


def test_a_devdax_device_is_measured(tmp_path, pool, monkeypatch):
    """A tree that stands for /sys, and a file that stands for the character device."""
    make_dax_tree(tmp_path / "sys", SIZE_BYTES, 2 * MIB)
    monkeypatch.setattr(dax, "_SYS", tmp_path / "sys")
    monkeypatch.setattr(dax, "device_number", lambda path: "252:0" if os.stat(path) else None)
    monkeypatch.setattr(calibrate.os.path, "isfile", lambda path: False)
    done = run(pool, "--processes", "1", *QUICK)
    assert done.exit_code == 0, done.output
    assert f"dax:{pool}" in " ".join(done.output.split()).replace(" ", "")
    assert "load, 1" in done.output
    assert "load, 2" not in done.output


def test_a_numa_node_is_measured(tmp_path):
    saved = tmp_path / "machine.toml"
    done = run("--numa", "0", "--size-mib", "4", "--processes", "1", "--save", saved, *QUICK)
    if done.exit_code == 2 and "the kernel refused to bind" in done.stderr:
        pytest.skip(done.stderr)
    assert done.exit_code == 0, done.output
    assert load_machine(saved).name == "calibrated-numa-0"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_that_holds_something_is_refused_and_kept_unless_nobody_needs_it(pool, overwrite):
    with open(pool, "r+b") as file:
        file.seek(4 * MIB - 1)
        file.write(b"x")
    before = pool.read_bytes()
    done = run("--file", pool, "--processes", "1", *QUICK, *(["--overwrite"] if overwrite else []))
    if overwrite:
        assert done.exit_code == 0, done.output
        assert pool.read_bytes() == bytes(SIZE_BYTES)
    else:
        assert done.exit_code == 2
        assert "holds something, which measuring would overwrite; give --overwrite" in done.stderr
        assert pool.read_bytes() == before


def test_a_device_that_is_in_use_is_refused_with_who_uses_it(pool):
    program = "import mmap, sys; file = open(sys.argv[1], 'r+b'); mapping = mmap.mmap(file.fileno(), 4096)"
    command = [sys.executable, "-c", f"{program}; print(1, flush=True); input()", str(pool)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        user.stdout.readline()
        done = run("--file", pool)
        assert done.exit_code == 2
        assert f"process {user.pid} uses the file" in done.stderr
        user.communicate(b"\n")


def test_another_processor_is_refused_before_any_byte_changes(pool, monkeypatch):
    pool.write_bytes(b"\xff" * SIZE_BYTES)
    def refuse(*_: object) -> None:
        raise MeasurementError("another processor")

    monkeypatch.setattr(memory.Native, "__init__", refuse)
    done = run("--file", pool, "--overwrite")
    assert (done.exit_code, done.stderr) == (2, "coarse: another processor\n")
    assert pool.read_bytes() == b"\xff" * SIZE_BYTES


def test_where_the_processor_flushes_no_lines_the_rest_is_measured(tmp_path, pool, monkeypatch):
    monkeypatch.setattr(calibrate, "cpu_flags", frozenset)
    saved = tmp_path / "machine.toml"
    done = run("--file", pool, "--processes", "1", "--save", saved, *QUICK)
    assert done.exit_code == 0, done.output
    assert "this processor flushes no lines" in " ".join(done.output.replace("│", " ").split())
    assert "# Flushes: not measured" in saved.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name one memory device: /dev/daxX.Y, --numa NODE or --file PATH"),
        (("--numa", "0", "--file", "POOL"), "name one memory device"),
        (("/dev/null",), "dax:/dev/null: this is no devdax device"),
        (("/dev/dax99.9",), "dax:/dev/dax99.9: there is no such device"),
        (("POOL",), "is a file and no device; name it by --file"),
        (("--numa", "977"), "numa:977: this machine has no NUMA node 977"),
        (("--file", "/absent/pool"), "file:/absent/pool: there is no such file"),
        (("--file", "/dev"), "file:/dev: this is a folder"),
        (("--file", "POOL", "--size-mib", "1"), "measuring wants at least"),
        (("--file", "POOL", "--size-mib", "0"), "--size-mib must be a number of MiB above 0, got 0"),
        (("--file", "POOL", "--processes", "0"), "--processes must lie in 1.."),
        (("--file", "POOL", "--processes", "100000"), "this machine's cores, got 100000"),
        (("--file", "POOL", "--repeats", "1"), "--repeats must lie in 2.."),
        (("--file", "POOL", "--seconds", "nan"), "--seconds must lie in 1..3600, got nan"),
        (("--file", "POOL", "--save", "/absent/machine.toml"), "--save /absent/machine.toml: cannot be written"),
        (("--file", "POOL", "--base", "aws-p3"), "machine aws-p3 has no [[memory]]"),
        (("--file", "POOL", "--base", "absent"), "--base: there is no preset 'absent'"),
        (("--file", "POOL", "--name", 'a"b'), "--name must be text"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_before_anything_is_measured(pool, monkeypatch, arguments, words):
    monkeypatch.setattr(calibrate, "_measured", lambda *_, **__: pytest.fail("measured"))
    done = run(*(str(pool) if each == "POOL" else each for each in arguments))
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1
    assert words in done.stderr


def test_a_file_that_is_too_short_is_refused_with_both_numbers(tmp_path):
    (tmp_path / "short").write_bytes(bytes(MIB))
    done = run("--file", tmp_path / "short")
    assert done.exit_code == 2
    assert f"measuring wants at least {4 * MIB} bytes" in done.stderr
    assert f"the device has {MIB}" in done.stderr
