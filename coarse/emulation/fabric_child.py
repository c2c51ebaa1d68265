"""Fabric process as its parent, worker 0, has it: started, awaited, and asked for its account."""

import json
import subprocess
import sys

from coarse.emulation.fabric import Absence, Charged, FabricReport
from coarse.emulation.failure import fabric_error
from coarse.emulation.site_file import FabricOrder, order_text
from coarse.errors import FabricError

_ENDING_S = 60.0


class FabricChild:
    """Fabric process that this process has started."""

    def __init__(self, order: FabricOrder, control: int, rank: int) -> None:
        """Start the process; `control` is the descriptor of the mailboxes' segment."""
        self._rank = rank
        self._process = subprocess.Popen(
            [sys.executable, "-m", "coarse.emulation.fabric_process", str(control)],
            pass_fds=(control,),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,  # mpirun ends a rank's whole group; this ends by itself, when all ranks have
        )
        assert self._process.stdin is not None
        self._process.stdin.write(order_text(order))
        self._process.stdin.close()
        self._process.stdin = None  # so that `communicate` leaves it alone

    @property
    def process_id(self) -> int:
        """Number of the process; its entry in /proc stays until `take_report`."""
        return self._process.pid

    def await_ready(self) -> None:
        """Return once it serves; FabricError if it could not start."""
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise fabric_error(self.process_id, self._rank)

    def take_report(self) -> FabricReport:
        """Return the account of the run, after all ranks have left."""
        try:
            text, _ = self._process.communicate(timeout=_ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise FabricError(
                f"rank {self._rank}: the fabric process (process {self.process_id}) had not ended {_ENDING_S:g} s "
                "after all ranks had left; it is killed, and so the run has no result: start it again",
                status=None,
            ) from None
        if self._process.returncode:
            raise fabric_error(self.process_id, self._rank, self._process.returncode)
        num_transfers, num_late, worst_late_s, link_bytes, absences, charged, recent = json.loads(text)
        return FabricReport(
            num_transfers, num_late, worst_late_s, tuple(link_bytes), tuple(Absence(*row) for row in absences),
            tuple((way, nbytes) for way, nbytes in charged), tuple(Charged(*row) for row in recent),
        )  # fmt: skip
