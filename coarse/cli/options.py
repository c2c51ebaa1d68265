"""Options that several commands have, and what they say of them."""

from typing import Annotated

import typer

from coarse.hardware.presets import preset_names

Degrade = Annotated[
    list[str] | None,
    typer.Option(help="LINK=FACTOR@SECONDS: what part of its rate a link has from then on; LINK may have * and ?."),
]
ProfileEvery = Annotated[int, typer.Option(help="Iterations until coarse profiles again and decides anew; 0: never.")]
MACHINE_HELP = f"A preset ({', '.join(preset_names())}), or the path of a machine file (.toml)."
