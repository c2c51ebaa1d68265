"""The command line as a whole: all commands are listed, and only the one that is called is imported."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.main import get_command

import coarse
from coarse.cli.app import HELP_LINES, MODULES, app

COMMANDS = Path(import_module("coarse.cli").__file__).parent
NOT_COMMANDS = {
    *("__init__", "app", "named_function", "options", "possible_modes", "progress", "sample_costs", "wrong_input"),
    *("check_strategy", "own_mode", "fields", "several_modes", "lacks", "first_sum"),
}
PROGRAM = """
import atexit, sys
from coarse.cli.app import main
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
main()
"""
NO_PART_OF_A_JOB = (
    *("coarse.simulation", "coarse.hardware", "coarse.emulation", "coarse.cli.report", "matplotlib", "torch"),
)


def modules_of(*command, folder):
    """Every module that a command line had imported when it ended, and what it printed."""
    argv = [sys.executable, "-c", PROGRAM, *command]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=60, check=True)
    return set(done.stderr.split()), done.stdout


def commands_among(modules):
    """The commands whose files are among the modules."""
    return {name for name, module in MODULES.items() if module in modules}


def test_every_file_of_the_folder_is_a_command_that_the_app_lists():
    assert {path.stem for path in COMMANDS.glob("*.py")} - NOT_COMMANDS == set(HELP_LINES) - {"report"}


@pytest.mark.parametrize("name", HELP_LINES)
def test_a_help_line_is_what_the_command_says_of_itself(name):
    command = get_command(import_module(MODULES[name]).app)
    first, _, _ = command.help.partition("\n\n")
    assert " ".join(first.split()) == HELP_LINES[name]


def test_help_lists_every_command_and_imports_none(tmp_path):
    modules, output = modules_of("--help", folder=tmp_path)
    assert all(f" {name} " in output for name in HELP_LINES)
    assert not commands_among(modules)


def test_coarse_alone_shows_six_commands_of_a_first_hour_and_imports_none(tmp_path):
    modules, output = modules_of(folder=tmp_path)
    shown = [line.split()[:2] for line in output.splitlines() if line.startswith("  coarse ")]
    assert len(shown) == 6
    assert {name for _, name in shown} <= set(HELP_LINES)
    assert not commands_among(modules)


@pytest.mark.parametrize(
    ("words", "found"),
    [("coarse pre", "predict"), ("coarse predict --mach", "--machine"), ("coarse sweep --va", "--vary")],
)
def test_a_shell_completes_commands_and_options(words, found):
    asked = {"_COARSE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    arguments, environ = [sys.executable, "-m", "coarse"], {**os.environ, **asked}
    done = subprocess.run(arguments, env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert found in done.stdout.split()


def test_a_command_shows_its_own_options_under_its_own_name(capsys):
    with pytest.raises(SystemExit) as ended:
        app(["predict", "--help"], prog_name="coarse")
    assert ended.value.code == 0
    output = capsys.readouterr().out
    assert "coarse predict [OPTIONS]" in output
    assert all(option in output for option in ("--machine", "--straggler", "--no-nvlink", "--out"))


def test_run_imports_nothing_that_simulates_emulates_or_draws(tmp_path):
    (tmp_path / "train.py").touch()
    modules, output = modules_of("run", "--dry-run", "train.py", folder=tmp_path)
    assert "train.py" in output
    assert commands_among(modules) == {"run"}
    assert not {name for name in modules for other in NO_PART_OF_A_JOB if f"{name}.".startswith(f"{other}.")}


def test_a_misspelt_command_is_answered_with_the_one_that_was_meant(capsys):
    with pytest.raises(SystemExit) as ended:
        app(["pridict"], prog_name="coarse")
    assert ended.value.code == 2
    assert "'predict'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    ["predict", *(pytest.param(name, marks=pytest.mark.test_all) for name in ("report", "sweep", "shard", "validate"))],
)
def test_help_needs_no_matplotlib(command):
    program = "import sys; sys.modules['matplotlib'] = None; from coarse.cli.app import main; main()"
    arguments = [sys.executable, "-c", program, command, "--help"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert f"coarse {command}" in done.stdout


def test_the_version_is_that_of_the_distribution():
    arguments = [sys.executable, "-m", "coarse", "--version"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == f"coarse-cxl {coarse.__version__}\n"
