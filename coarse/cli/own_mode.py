"""Texts and the option for a user's own strategies, which several commands have."""

from typing import Annotated

import typer

OWN_MODE = "or a strategy of your own as MODULE:CLASS or FILE.py:CLASS"
SetOptions = Annotated[
    list[str] | None,
    typer.Option("--set", help="NAME=VALUE, or CLASS.NAME=VALUE for one: options of strategies of your own."),
]
