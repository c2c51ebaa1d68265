"""The command line's options of the mode luwu: where states are kept, and how updates are made."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from torch import nn

MIB = 1024 * 1024


def add_network_arguments(parser: argparse.ArgumentParser) -> None:
    """Add them, in a group of their own."""
    group = parser.add_argument_group("mode luwu")
    group.add_argument("--storage", action="append", metavar="DIR", help="where states are kept; again for each disk")
    group.add_argument("--resume", action="store_true", help="go on from the last committed step in --storage")
    group.add_argument("--update", choices=("step", "backward"), default="step", help="when units are updated")
    group.add_argument("--memory", type=int, metavar="MIB", help="what each memory device may use for buffers")
    group.add_argument("--commit-every", type=int, default=1, metavar="STEPS", help="what a crash may cost at most")
    group.add_argument("--timeline", metavar="DIR", help="where to leave traces of what happened when, for Perfetto")
    group.add_argument("--meta", action="store_true", help="make the model unit by unit, never in one place")


def check_network_arguments(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """End with an error where they do not fit the mode."""
    if given.mode == "luwu":
        if not given.storage:
            parser.error("--mode luwu keeps states in --storage DIR; name a folder on the memory device's host")
        return
    for name in ("--storage", "--resume", "--memory", "--timeline", "--meta"):
        if getattr(given, name[2:]):
            parser.error(f"{name} is for --mode luwu, which is {given.mode}; leave it out")


def network_options(
    given: argparse.Namespace, initialise: Callable[[nn.Module], None] | None = None
) -> dict[str, Any]:
    """What model_in_network is called with; `initialise` fills modules of a model on the meta device."""
    return {
        "storage": given.storage,
        "resume": given.resume,
        "update": given.update,
        "memory": None if given.memory is None else given.memory * MIB,
        "commit_every": given.commit_every,
        "timeline": given.timeline,
        "initialise": initialise if given.meta else None,
    }
