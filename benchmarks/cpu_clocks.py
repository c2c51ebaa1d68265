"""CPU seconds of processes, other processes included, to the nanosecond."""

from __future__ import annotations

import time
from collections.abc import Sequence

from coarse.protocol.clock import cpu_clock_of


def cpu_s_of(process_ids: Sequence[int]) -> float:
    """CPU seconds that these processes have used together, user and system; the same sum as getrusage's."""
    return sum(time.clock_gettime(cpu_clock_of(process_id)) for process_id in process_ids)
