"""What the evaluation of LuWu takes for granted, chosen once, each with its source or as an assumption."""

from dataclasses import dataclass

from experiments.validation.declared import ASSUMED, SOURCED, Declared, Taken

TITLE = "LuWu: claims and ours"
NUM_WORKERS = 8
TOLERANCE = 0.2
"""Fixed before anything ran: the paper states peaks over micro-batches that it does not list."""
BATCHES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The choices that the paper's text leaves open."""

    most_batch: int = 32
    """Where the micro-batches of figures 11 and 12 end."""
    float32_share: float = 0.5
    """Of what a worker attains in bfloat16, what SwitchML's does in float32."""
    disk_share: float = 0.68
    """Of their rate what a worker's disks attain together."""
    prefetch: bool = False
    """Whether a unit comes while another is computed, with figure 3a's interference."""


CENTRAL = Inputs()
_taken = Taken(CENTRAL)
under, inputs_now = _taken.under, _taken.now

DECLARED = (
    Declared("cards", "12.5 GB/s a worker each way, and 12 GB/s to its GPU", SOURCED, "LuWu 4.1"),
    Declared("workers' disks", "3.25 GB/s each way; with SHARP and four workers 6.5", SOURCED, "LuWu 4.1: 26 together"),
    Declared("memory", "256 GB of a host, 40 GiB of a GPU of which 1 for the framework", SOURCED,
             "LuWu 4.1; 1 GiB is an assumption"),
    Declared("logits", "five numbers each, as for FCDP", SOURCED, "transformers' causal loss; coarse/hardware/gpt.py"),
    Declared("micro-batches", "powers of two to 32; ZeRO-Infinity's to 16 with 66B and 175B", SOURCED,
             "LuWu 4.4 and 4.6, whose figures end at 32; 2.1 and 4.6 for ZeRO-Infinity. Figures 11 and 12 say none"),
    Declared("float32", "half of bfloat16", ASSUMED,
             "TF32 beside bfloat16 on an A100's data sheet; PyTorch 1.9 uses it. 5.80x (4.3) with 30 to 50 % idle (1) "
             "would be 0.25 to 0.34"),
    Declared("packets", "1 KiB, 12.2e6 a second each way: the card's rate", ASSUMED, "LuWu 4.1 (folded pipes)"),
    Declared("pace", "183 TFLOPS of a worker, 145 with OPT-1.3B", "fitted to figure 11's peaks", "LuWu 4.3"),
    Declared("disk share", "68 % of their rate is attained", "fitted to figure 2b's 37 %", "LuWu 2.1"),
    Declared("host memory", "8 bytes of each parameter of a shard", "fitted to figure 10: 175B on 8 workers",
             "LuWu 4.2"),
    Declared("units", "one after the other, as figure 5a is written", SOURCED,
             "LuWu figure 5a; with prefetch 30 % of a collective takes the GPU's time (figure 3a)"),
)  # fmt: skip
"""Everything that a row may name in its `inputs`."""
