"""The Python blocks of docs/tensorflow.md are one program, which prints what stands below them."""

import re

import pytest

from tests.mpi.docs.test_tutorial import run
from tests.support.launch import REPOSITORY

PAGE = (REPOSITORY / "docs" / "tensorflow.md").read_text()
COMMAND = "coarse run --workers 2 --devices 2 train.py"


def blocks(language: str) -> list[str]:
    """The page's blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.test_all
def test_the_program_of_the_page_prints_what_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("\n\n".join(blocks("python")))
    completed = run(COMMAND, tmp_path, timeout_s=180)
    assert completed.returncode == 0, completed.stderr
    assert sorted(completed.stdout.splitlines()) == sorted("".join(blocks("text")).splitlines()), completed.stderr


def test_the_command_that_is_tested_stands_in_the_page():
    assert re.search(rf"^    {re.escape(COMMAND)}\b", PAGE, re.MULTILINE)
