"""What others measured of pools over CXL: CCCL's collectives and cMPI's latency; see docs/predict.md for the model of a
pool. Of both papers the abstracts and published summaries were at hand, not the measurements."""

from experiments.cxl_pool import cccl, cmpi
from experiments.cxl_pool.collectives import Primitive
from experiments.validation.declared import ASSUMED, SOURCED, Declared
from experiments.validation.paper import Paper, figure

POOLS = (
    Paper(
        name="cccl",
        title="CCCL (arXiv 2602.22457)",
        explained="predict.md",
        figures=(figure("abstract", "collectives over a pool beside InfiniBand", cccl),),
        declared=(
            Declared("ports", "55 GB/s each way", ASSUMED, "PCIe 5 x16, less headers"),
            Declared("devices", "six of 36 GB/s, 0.21 us", SOURCED, "vendor's MLC figure; latency assumed"),
            Declared("stores", "26.8 GB/s a node", f"fitted to {Primitive.SCATTER}", "its mean ratio of 1.04"),
            Declared("InfiniBand", "24.5 GB/s, 5 us a step", ASSUMED, "200 Gbit/s, less headers; NCCL's rings"),
            Declared("chunks", "4 MiB", ASSUMED, "what is stored before a doorbell, and what a ring hands on"),
            Declared("sizes", "1 MiB to 4 GiB", ASSUMED, "the abstract names means and no sizes"),
        ),
    ),
    Paper(
        name="cmpi",
        title="cMPI (arXiv 2510.05476)",
        explained="predict.md",
        figures=(figure("abstract", "latency of an access with its flush beside TCP", cmpi),),
        declared=(
            Declared("Niagara 2.0", "0.79 us; 2.2 us and 9.5 GB/s with flushes", SOURCED, "cMPI"),
            Declared("TCP", "16 us over Ethernet, 18 us over a ConnectX-6", SOURCED, "cMPI"),
        ),
    ),
)
