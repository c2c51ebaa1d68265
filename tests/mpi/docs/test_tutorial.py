"""Every program of docs/tutorial.md runs by the command that stands in it, and prints what the page says."""

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.launch import REPOSITORY, Completed, complete, mpirun

PAGE = (REPOSITORY / "docs" / "tutorial.md").read_text()
FILE = re.compile(
    r"^```\w+\n(# ([\w.]+)(?:: ([^\n]+))?\n.*?)^```\n"  # its text, its name, its command
    r"(?:\n```text\n(.*?)^```\n)?",  # what it prints
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, kw_only=True)
class File:
    """A file of the page; those with a command are programs."""

    name: str
    text: str
    command: str | None
    output: str | None


def files_by_section(page: str) -> dict[str, list[File]]:
    """The files of each section, in order; sections without any are left out."""
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    found = {
        section.splitlines()[0]: [
            File(name=name, text=text, command=command or None, output=output or None)
            for text, name, command, output in FILE.findall(section)
        ]
        for section in sections
    }
    return {title: files for title, files in found.items() if files}


SECTIONS = files_by_section(PAGE)


def run(command: str, folder: Path, timeout_s: float = 60.0) -> Completed:
    """Carry out `[NAME=value ...] mpirun -n N python FILE ...` or `coarse run ... FILE ...` in the folder."""
    words = shlex.split(command)
    env = {}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    if words[0] == "coarse":
        assert not env
        return complete([sys.executable, "-m", *words], timeout_s=timeout_s)
    assert words[:2] == ["mpirun", "-n"]
    assert words[3] == "python"
    return mpirun(int(words[2]), folder / words[4], *words[5:], env=env, timeout_s=timeout_s)


@pytest.mark.parametrize("title", SECTIONS)
def test_the_programs_of_a_section_print_what_the_page_says(title, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file in SECTIONS[title]:
        (tmp_path / file.name).write_text(file.text)
    for program in (file for file in SECTIONS[title] if file.command is not None):
        completed = run(program.command, tmp_path)
        assert completed.returncode == 0, f"{program.name}: {completed.stderr}"
        assert sorted(completed.stdout.splitlines()) == sorted((program.output or "").splitlines()), program.name


def test_every_python_block_of_the_tutorial_is_a_program_that_runs():
    programs = [file for files in SECTIONS.values() for file in files if file.command is not None]
    assert len(programs) == PAGE.count("```python")
