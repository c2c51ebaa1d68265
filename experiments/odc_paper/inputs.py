"""What the evaluation of ODC takes for granted, chosen once, each with its source or as an assumption."""

from dataclasses import dataclass

from experiments.long_tail.lengths import SIGMAS
from experiments.validation.declared import ASSUMED, SOURCED, Declared, Taken

TITLE = "ODC: claims and ours"


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The choices that the paper's summary leaves open."""

    sigmas: tuple[float, ...] = tuple(SIGMAS)
    """Of log-normal lengths; a row is over all of them."""
    most_samples: int = 8
    """Of a worker and minibatch."""
    rl_mean_tokens: float = 8_000.0
    """Of a response to a prompt of AIME."""
    least_rl_samples: int = 2


CENTRAL = Inputs()
_taken = Taken(CENTRAL)
under, inputs_now = _taken.under, _taken.now

DECLARED = (
    Declared("costs", "a s^2 + b s of a sample of s tokens, 7B on an A100", SOURCED, "sail-sg/odc's own measurement"),
    Declared(
        "lengths", "log-normal with means of 16.5K and 34.7K tokens, sigma 0.5, 1.0 and 1.5, at most 65,536", ASSUMED,
        "ODC states the means (LongAlign, SWE-Smith); shape and cap are assumptions",
    ),
    Declared("sizes", "1 to 8 samples of a worker, 8 and 32 workers", ASSUMED,
             "ODC: up to 32 GPUs; sizes are not listed"),
    Declared(
        "rollouts", "responses of 8K tokens in the mean, cut at 16K; 2 to 16 of a worker; microbatches of 16,384",
        ASSUMED, "verl's default of ppo_max_token_len_per_gpu; lengths and samples are not stated",
    ),
    Declared("links", "take no time", ASSUMED, "ODC: 800 Gbit/s a node; benchmarks/odc_paper.py has them with time"),
)  # fmt: skip
"""Everything that a row may name in its `inputs`."""
