"""Every file of examples/ is short, and does what it says by the commands that stand at its head."""

import re
import shlex

import pytest

from tests.mpi.docs.test_tutorial import run
from tests.support.launch import REPOSITORY, mpirun

FOLDER = REPOSITORY / "examples"
FILES = sorted(path for path in FOLDER.iterdir() if path.suffix in (".py", ".toml"))
MOST_LINES = 40
COMMAND_S = 30.0
"""Seconds that a command takes at most on two cores; twice as many are allowed here, where they do other work too."""
COMMANDS = {path.name: re.findall(r"^#?     ?(coarse .*)$", path.read_text(), re.MULTILINE) for path in FILES}
PRINTS = {
    "push_pull.py": ("mean 1.5", "sum 3.0", "in place 0.5"),
    "ddp.py": ("worker 0: weights equal on all workers: True", "worker 1: weights equal on all workers: True"),
    "fsdp2.py": ("66944 of 133888 parameters are here",),
    "fcdp_lora.py": ("16384 of 279552 parameters train", "bytes of gathers came from the node's memory"),
    "odc_microbatches.py": ("worker 0: minibatch 4, 16 rows", "worker 1: minibatch 4, 64 rows"),
    "luwu.py": ("worker 0: 10 steps", "worker 1: 10 steps"),
    "keras_fit.py": ("losses",),
    "emulated.py": ("loss ", "(emulated"),
}
LIBRARIES = {"push_pull.py": "coarse", "keras_fit.py": "tensorflow"}


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_is_short_and_its_commands_name_it(name):
    assert len((FOLDER / name).read_text().splitlines()) <= MOST_LINES
    assert COMMANDS[name]
    assert all(f"examples/{name}" in command for command in COMMANDS[name])


@pytest.mark.parametrize("name", [name for name in PRINTS if name != "emulated.py"])
def test_an_example_prints_what_it_is_about(name):
    words = shlex.split(COMMANDS[name][0])
    assert words == ["coarse", "run", "--workers", "2", "--devices", "1", f"examples/{name}"]
    library = LIBRARIES.get(name, "torch")
    ended = mpirun(3, FOLDER / name, env={"COARSE_PARTITION": "2:1"}, timeout_s=60, preloaded=library)
    assert ended.returncode == 0, ended.stderr
    for text in PRINTS[name]:
        assert text in ended.stdout, ended.stdout


@pytest.mark.test_all
@pytest.mark.parametrize("command", [command for commands in COMMANDS.values() for command in commands])
def test_the_command_of_an_example_ends_well(command, tmp_path, monkeypatch):
    (tmp_path / "examples").symlink_to(FOLDER)
    monkeypatch.chdir(tmp_path)
    ended = run(command, tmp_path, timeout_s=2 * COMMAND_S)
    assert ended.returncode == 0, ended.stderr
    (named,) = re.findall(r"examples/([\w.]+)", command.split()[-1]) or re.findall(r"examples/([\w.]+)", command)[:1]
    for text in PRINTS.get(named, ()):
        assert text in ended.stdout + ended.stderr, ended.stdout


def test_there_are_ten_examples():
    assert len(FILES) == 10
