"""Lacks of a machine: each fact that is wrong is said once with a command, and a machine that has all lacks nothing."""

from dataclasses import replace

import pytest

from coarse.cli import lacks
from coarse.cli.lacks import Machine, lacks_of, this_machine
from coarse.protocol.units import GIB, MIB

COMPLETE = Machine(
    missing_defaults={},
    why_copied="",
    free_bytes=8 * GIB,
    shared_bytes=GIB,
    num_cores=2,
    missing_packages=(),
    why_no_gpus="",
    why_no_box="",
)
WRONG = {
    "memory": ({"free_bytes": 512 * MIB}, "512 MiB", "docker --memory"),
    "shared memory": ({"shared_bytes": MIB}, "/dev/shm, 1 MiB", "docker run --shm-size 1g"),
    "defaults": ({"missing_defaults": {"OMPI_MCA_btl": "^ofi"}}, "plain mpirun", "export OMPI_MCA_btl=^ofi"),
    "in place": ({"why_copied": "the kernel forbids"}, "the kernel forbids", "docker run --cap-add SYS_PTRACE"),
    "cores": ({"num_cores": 1}, "second core", "taskset"),
    "torch": ({"missing_packages": ["torch"]}, "coarse.torch", "pip install 'coarse-cxl[torch]'"),
    "GPUs": ({"why_no_gpus": "no CuPy"}, "no CuPy", "pip install 'coarse-cxl[cuda]'"),
    "box": ({"why_no_box": "run it as root"}, "coarse run --cluster", "run it as root"),
}


def test_a_machine_that_has_all_lacks_nothing():
    assert lacks_of(COMPLETE) == []


@pytest.mark.parametrize("name", WRONG)
def test_each_lack_is_said_with_what_follows_and_what_to_type(name):
    facts, said, remedy = WRONG[name]
    (lack,) = lacks_of(replace(COMPLETE, **facts))
    assert said in f"{lack.lack}: {lack.effect}"
    assert remedy in lack.remedy


def test_all_lacks_are_listed_once():
    facts = {key: value for changed, *_ in WRONG.values() for key, value in changed.items()}
    assert len(lacks_of(replace(COMPLETE, **facts))) == len(WRONG)


def test_the_facts_of_this_machine_are_read(monkeypatch, tmp_path):
    monkeypatch.setattr(lacks, "find_spec", lambda name: None if name == "tensorflow" else object())
    monkeypatch.setattr(lacks, "_NVIDIA", tmp_path / "absent")
    machine = this_machine({}, "", GIB, "no CuPy")
    assert machine.missing_packages == ["tensorflow"]
    assert machine.why_no_gpus == ""  # a machine without the driver lacks no GPU
    monkeypatch.setattr(lacks, "_NVIDIA", tmp_path)
    assert this_machine({}, "", GIB, "no CuPy").why_no_gpus == "no CuPy"


def test_programs_and_capabilities_of_a_box_are_looked_for(monkeypatch):
    monkeypatch.setattr(lacks, "require_capabilities", lambda text: None)
    monkeypatch.setattr("shutil.which", lambda name: None if name == "tc" else name)
    assert "install iproute2" in this_machine({}, "", GIB, "").why_no_box
