"""Start of a script that trains, where an option of it states a setting and a configuration file the others."""

import os

import coarse


def join_job(**settings: str | None) -> None:
    """Call `coarse.init()` with the mode and the policy given, each unless it is None; the file of COARSE_CONFIG holds
    for the rest. A memory device serves in here and never returns.

    Where there is a file, memory devices read it too, and those that start beside torchrun's workers take variables of
    the environment from them.
    """
    stated = {key: value for key, value in settings.items() if value is not None}
    if not os.environ.get("COARSE_CONFIG"):
        coarse.init(stated)
        return
    os.environ.update({f"COARSE_{key.upper()}": value for key, value in stated.items()})
    coarse.init()
