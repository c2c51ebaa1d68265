"""`coarse validate`: the claims of five papers and two of pools, simulated."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from coarse.cli.wrong_input import wrong_input_ends_with_2
from coarse.errors import ConfigError

_REPOSITORY = Path(__file__).resolve().parents[2]
app = typer.Typer(add_completion=False)


@app.command()
def validate(
    out: Annotated[Path, typer.Option(help="The folder for rows as JSON.")] = Path("results/validation"),
    only: Annotated[
        str, typer.Option(help="Some papers, separated by commas: coarse, fsdp, fcdp, luwu, odc, cccl, cmpi.")
    ] = "",
    docs: Annotated[Path | None, typer.Option(help="Write the tables as this Markdown page, too.")] = None,
    intervals: Annotated[
        bool, typer.Option(help="Rows under all that their inputs may have been, instead; half an hour.")
    ] = False,
) -> None:
    """Simulate what five papers, and two of pools, claim: paper, ours, verdict."""
    with wrong_input_ends_with_2():
        if not (_REPOSITORY / "experiments" / "validate.py").is_file():
            raise ConfigError(
                "the papers' evaluations are in experiments/ of the repository, which is not at "
                f"{_REPOSITORY}; clone it and run `make validate` there"
            )
        out.mkdir(parents=True, exist_ok=True)  # before minutes of simulation, after which it could not be written
        sys.path.append(str(_REPOSITORY))
        from experiments.validate import chosen, run, run_intervals

        runs = run_intervals if intervals else run
        raise typer.Exit(runs(Console(), papers=chosen(only), out=out, docs=docs))
