"""Options of commands that name strategies of users."""

from typing import Annotated

import typer

OWN_MODE = "or a strategy of your own as MODULE:CLASS or FILE.py:CLASS"
SetOptions = Annotated[
    list[str] | None,
    typer.Option("--set", help="NAME=VALUE, or CLASS.NAME=VALUE for one: options of strategies of your own."),
]
