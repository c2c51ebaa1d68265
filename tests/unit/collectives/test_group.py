"""A group of one worker: in a process of its own, since importing groups starts MPI."""

import subprocess
import sys

PROGRAM = """
import numpy as np
import coarse
from coarse.parallel.groups import shared_by_groups
from coarse.session import current

coarse.init()
from coarse.collectives.group import WorkerGroup

group = WorkerGroup(shared_by_groups(current()), (0,))
own = np.arange(100, dtype=np.uint8)
for gather in (group.gather_on_node, group.all_gather):
    out = np.zeros(100, np.uint8)
    gather(out, own, what="what is here already").wait(20)
    assert (out == own).all()
group.close()
coarse.shutdown()
"""


def test_a_member_alone_on_its_node_has_all_slices_and_no_staging_buffer():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
