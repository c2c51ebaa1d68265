"""`coarse validate`: claims of the COARSE and FCDP papers, and of parts of FSDP, CCCL and cMPI, simulated."""

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
    intervals: Annotated[
        bool, typer.Option(help="COARSE's and FCDP's rows under all that their inputs may have been, instead.")
    ] = False,
) -> None:
    """Simulate what the COARSE and FCDP papers claim, and parts of three others: paper, ours, verdict."""
    with wrong_input_ends_with_2():
        if not (_REPOSITORY / "experiments" / "coarse_paper").is_dir():
            raise ConfigError(
                "the papers' evaluations are in experiments/ of the repository, which is not at "
                f"{_REPOSITORY}; clone it and run `make validate` there"
            )
        out.mkdir(parents=True, exist_ok=True)  # before minutes of simulation, after which it could not be written
        sys.path.append(str(_REPOSITORY))
        if intervals:
            from experiments.coarse_paper import intervals as coarse_intervals
            from experiments.fcdp_paper import intervals as sharded_intervals

            studies = (coarse_intervals.STUDY, sharded_intervals.STUDY)
            raise typer.Exit(max(study.run(Console(), out=out) for study in studies))
        from experiments.coarse_paper import validate as coarse_paper
        from experiments.cxl_pool import validate as pools
        from experiments.fcdp_paper import validate as sharded_papers

        console = Console()
        raise typer.Exit(max(paper.run(console, out=out) for paper in (coarse_paper, sharded_papers, pools)))
