"""What commands do with what a user can mend: one message and exit status 2, and nothing else is hidden."""

import pytest
import typer
from typer.testing import CliRunner

from coarse.cli import emulate, validate
from coarse.cli.wrong_input import wrong_input_ends_with_2
from coarse.errors import ConfigError

MENDABLE = {
    ConfigError("workers must be at least 1"): "coarse: workers must be at least 1",
    FileNotFoundError(2, "No such file or directory", "run.json"): "coarse: run.json: No such file or directory; ",
    ModuleNotFoundError("gone", name="matplotlib.figure"): "pip install 'coarse-cxl[report]'",
}


@pytest.mark.parametrize("error", MENDABLE, ids=lambda error: type(error).__name__)
def test_what_a_user_can_mend_is_one_line_and_status_2(error, capsys):
    with pytest.raises(typer.Exit) as ended, wrong_input_ends_with_2():
        raise error
    assert ended.value.exit_code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert MENDABLE[error] in line


NOT_MENDABLE = (BrokenPipeError(), ModuleNotFoundError("gone", name="coarse.lost"), KeyError("x"))


@pytest.mark.parametrize("error", NOT_MENDABLE, ids=repr)
def test_what_is_no_wrong_input_passes_unchanged(error, capsys):
    with pytest.raises(type(error)) as raised, wrong_input_ends_with_2():
        raise error
    assert raised.value is error
    assert not capsys.readouterr().err


IMPOSSIBLE = (("--workers", "0"), ("--devices", "-1"), ("--batch", "0"), ("--policy", "papr"))


@pytest.mark.parametrize("option", IMPOSSIBLE, ids=" ".join)
def test_emulate_refuses_impossible_numbers_before_it_starts_ranks(option):
    done = CliRunner().invoke(emulate.app, option)
    assert done.exit_code == 2
    assert option[0] in done.stderr
    assert not done.stdout


def test_validate_refuses_a_folder_that_cannot_be_made_before_it_simulates(tmp_path):
    (tmp_path / "file").touch()
    done = CliRunner().invoke(validate.app, ["--out", str(tmp_path / "file")])
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"coarse: {tmp_path / 'file'}: ")
