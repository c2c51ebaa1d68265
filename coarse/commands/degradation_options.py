"""The options of jobs whose links change as they run: the same of `coarse predict` and `coarse emulate`."""

from typing import Annotated

import typer

Degrade = Annotated[
    list[str] | None,
    typer.Option(help="LINK=FACTOR@SECONDS: what part of its rate a link has from then on; LINK may have * and ?."),
]
ProfileEvery = Annotated[int, typer.Option(help="Iterations until coarse profiles again and decides anew; 0: never.")]
