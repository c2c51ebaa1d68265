"""`coarse validate`: every claim of the COARSE paper, simulated, beside what the paper states."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from coarse.cli_input import wrong_input_ends_with_2
from coarse.errors import ConfigError

_REPOSITORY = Path(__file__).resolve().parents[1]


def validate(
    out: Annotated[Path, typer.Option(help="The folder for rows as JSON.")] = Path("results/validation"),
) -> None:
    """Simulate the paper's evaluation and print claim, paper, ours, deviation and verdict of each."""
    with wrong_input_ends_with_2():
        if not (_REPOSITORY / "experiments" / "coarse_paper").is_dir():
            raise ConfigError(
                "the paper's evaluation is in experiments/coarse_paper of the repository, which is not at "
                f"{_REPOSITORY}; clone it and run `make validate` there"
            )
        sys.path.append(str(_REPOSITORY))
        from experiments.coarse_paper.validate import run

        raise typer.Exit(run(Console(), out=out))
