import os
import time

import pytest

from benchmarks.cpu_clocks import cpu_s_of


def test_a_process_id_gives_the_clock_that_the_process_itself_reads():
    before_s = time.process_time()
    read_s = cpu_s_of([os.getpid()])
    assert before_s <= read_s <= time.process_time()


def test_processes_are_added():
    assert cpu_s_of([os.getpid()] * 2) >= 2 * cpu_s_of([]) == 0


def test_a_process_that_is_gone_is_an_error():
    process_id = os.posix_spawn("/bin/true", ["true"], os.environ)
    os.waitpid(process_id, 0)
    with pytest.raises(OSError, match="Invalid argument"):
        cpu_s_of([process_id])
