"""What others measured of pools over CXL: CCCL's collectives and cMPI's latency; see docs/predict.md for the model of a
pool. Of both papers the abstracts and published summaries were at hand, not the measurements."""

from collections.abc import Callable

from experiments.cxl_pool import cccl, cmpi
from experiments.cxl_pool.inputs import CCCL_DECLARED, CCCL_INTERVALS, CENTRAL, CMPI_DECLARED, CMPI_INTERVALS, under
from experiments.validation.claims import ClaimRow
from experiments.validation.interval_study import Study, Values, with_values
from experiments.validation.paper import Paper, figure


def _under(rows: Callable[[], list[ClaimRow]]) -> Callable[[Values], list[ClaimRow]]:
    """A paper's rows with some inputs at other values."""

    def found(values: Values) -> list[ClaimRow]:
        with under(with_values(CENTRAL, values)):
            return rows()

    return found


POOLS = (
    Paper(
        name="cccl",
        title="CCCL (arXiv 2602.22457)",
        explained="predict.md",
        figures=(figure("abstract", "collectives over a pool beside InfiniBand", cccl),),
        declared=CCCL_DECLARED,
        studies=(
            Study(
                title="CCCL", what="All rows.", intervals=CCCL_INTERVALS, rows_under=_under(cccl.rows), num_samples=8,
                headlines=("AllGather: InfiniBand's time", "Broadcast: InfiniBand's time"),
            ),
        ),
    ),
    Paper(
        name="cmpi",
        title="cMPI (arXiv 2510.05476)",
        explained="predict.md",
        figures=(figure("abstract", "latency of an access with its flush beside TCP", cmpi),),
        declared=CMPI_DECLARED,
        studies=(
            Study(
                title="cMPI", what="All rows.", intervals=CMPI_INTERVALS, rows_under=_under(cmpi.rows), num_samples=1,
                headlines=("the same over a message",),
            ),
        ),
    ),
)  # fmt: skip
