"""Options that several commands have, what they say of them, and the modes that a machine can run."""

from collections.abc import Callable, Iterable
from typing import Annotated, TypeVar

import typer

from coarse.errors import CapacityError, ConfigError
from coarse.hardware.presets import preset_names

Intervals = Annotated[
    list[str] | None,
    typer.Option(
        help="What an input may be instead, KEY=LOW:HIGH: compute, rates or latencies (factors on all of them), "
        "ring_slow_down, or a field of the machine's file."
    ),
]
Samples = Annotated[
    int | None,
    typer.Option(
        help="Simulations under other inputs, beside the fast and the slow end, from which ranges are; 0: no ranges. "
        "By default 6; of coarse predict for up to 16 workers."
    ),
]
Degrade = Annotated[
    list[str] | None,
    typer.Option(help="LINK=FACTOR@SECONDS: what part of its rate a link has from then on; LINK may have * and ?."),
]
PolicyOption = Annotated[
    str, typer.Option("--policy", help="How coarse decides what goes to the devices: auto, paper or devices (all).")
]
Collective = Annotated[
    str | None,
    typer.Option(
        help="How coarse's devices sum: in_place, as live, or ring (COARSE IV-A). By default in_place for up to 64 "
        "workers."
    ),
]
HoldBack = Annotated[
    bool,
    typer.Option(help="Whether all-reduce waits for backward's end, as COARSE's evaluation has it; live it does not."),
]
RingSlowDown = Annotated[
    float | None,
    typer.Option(
        help="How many times longer a worker computes beside a collective of the workers: 1, and 1 to 1.4 in ranges, "
        "where nobody says."
    ),
]
ProfileEvery = Annotated[int, typer.Option(help="Iterations until coarse profiles again and decides anew; 0: never.")]
Jittered = Annotated[
    float, typer.Option("--jitter", help="0.1: by chance each iteration's compute takes 10 % longer, in the mean.")
]
Seed = Annotated[int | None, typer.Option(help="Of --jitter: another one gives other draws; 0 by default.")]
OWN_MODEL_HELP = (
    "a config.json of Hugging Face, MODULE:FUNCTION or FILE.py:FUNCTION that returns a torch module"
)
TRACE_HELP = "a trace of a training step (.json or .json.gz of torch.profiler or of coarse, .et of Chakra)"
Step = Annotated[int | None, typer.Option(help="Which ProfilerStep of a trace; by default the median.")]
MACHINE_HELP = f"A preset ({', '.join(preset_names())}), or the path of a machine file (.toml)."


T = TypeVar("T")
M = TypeVar("M")


def require_jitter(seed: int | None, *, has_jitter: bool) -> int:
    """The seed; ConfigError where one was given and nothing is drawn."""
    if seed is not None and not has_jitter:
        raise ConfigError("--seed means nothing without --jitter; leave it out, or write --jitter 0.1", key="seed")
    return seed or 0


def of_possible_modes(
    modes: Iterable[M], of_mode: Callable[[M], T], *, must_have: bool, on_left_out: Callable[[str], None]
) -> list[T]:
    """What `of_mode` gives for each mode that is possible, in order; `on_left_out` gets a line on each other.

    Raises:
        ConfigError, CapacityError: why a mode is impossible, where they `must_have` been possible or none is.
    """
    found: list[T] = []
    refusal: Exception | None = None
    for mode in modes:
        try:
            found.append(of_mode(mode))
        except (ConfigError, CapacityError) as error:
            if must_have:
                raise type(error)(f"mode {mode}: {error}") from None
            refusal = error
            on_left_out(f"Left out {mode}: {error}.")
    if not found:
        raise ConfigError(f"no mode can run: {refusal}")
    return found
