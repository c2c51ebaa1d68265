"""Lengths of post-training samples: log-normal, with the means of two data sets, scaled to this machine.

Only the means are known (ODC: LongAlign 16.5K tokens, SWE-Smith 34.7K); the spread, sigma, is an assumption.
"""

from __future__ import annotations

import numpy as np

MEAN_TOKENS = {"longalign": 16_500, "swe-smith": 34_700}
SIGMAS = (0.5, 1.0, 1.5)
"""Assumed: 99 % of samples within a factor of 4, 13 and 48 of the median."""
LEAST_TOKENS = 8


def draw_lengths(data: str, sigma: float, num_samples: int, factor: float, most: int, seed: int) -> list[int]:
    """Tokens of each sample, the mean times `factor`; longer ones are cut to `most`, as a tokenizer would."""
    mean = MEAN_TOKENS[data] * factor
    median_log = np.log(mean) - sigma * sigma / 2
    drawn = np.random.default_rng(seed).lognormal(median_log, sigma, num_samples)
    lengths: list[int] = np.clip(drawn.astype(int), LEAST_TOKENS, most).tolist()
    return lengths


def sample_tokens(number: int, length: int, vocabulary: int) -> np.ndarray:
    """(length + 1,) int64: the same for everyone, made from the sample's number."""
    return np.random.default_rng(number).integers(0, vocabulary, length + 1)
