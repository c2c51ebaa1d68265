# Pure: no MPI, threads, clock or environment.
"""Top-k gradients: of each bucket a worker sends its largest values, and adds what it held back to the next round's."""

import math
from dataclasses import dataclass

from coarse.strategy import Coarse, Feedback, Tensor, TopK, Wire


@dataclass(frozen=True, kw_only=True)
class RatedTopK(TopK):
    """TopK on a processor whose speed a prediction is told."""

    encode_bytes_per_s: float = math.inf
    decode_bytes_per_s: float = math.inf


@dataclass(frozen=True, kw_only=True)
class TopKGradients(Coarse):
    """Sends a share of each bucket's values and their places (Lin et al., Deep Gradient Compression, 2018)."""

    share: float = 0.01
    feedback: bool = True
    """True to add values that were held back to those of the next round."""
    encode_gb_per_s: float = math.inf
    """Rate of a bucket's values, as `coarse check --strategy` measures it on a host."""
    decode_gb_per_s: float = math.inf

    def wire(self, tensor: Tensor) -> Wire:
        """Return the wire of every bucket."""
        rates = {"encode_bytes_per_s": self.encode_gb_per_s * 1e9, "decode_bytes_per_s": self.decode_gb_per_s * 1e9}
        top = RatedTopK(share=self.share, **rates)
        return Feedback(inner=top) if self.feedback else top
