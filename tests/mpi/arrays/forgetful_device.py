"""A job whose memory devices leave one flush out of their rings: `forgetful_device.py METHOD`, and what it says."""

import inspect

import numpy as np

import coarse
from coarse.pool import ring
from coarse.pool.ring import RingReader, RingWriter
from tests.support.checked_pool import Forgetful

OMITTED = "self._pool.flush(offset, piece)"


def line_of(text: str) -> int:
    """The number of the line of the ring's source that has a text."""
    return next(n for n, line in enumerate(inspect.getsource(ring).splitlines(), 1) if text in line)


def forgetting(kind: type) -> None:
    """Have all rings of a kind use a pool that forgets."""
    opened = kind.__init__

    def open_forgetful(self, pool, *rest):
        opened(self, Forgetful(pool, ring.__file__, line_of(OMITTED)), *rest)

    kind.__init__ = open_forgetful


for kind in (RingWriter, RingReader):
    forgetting(kind)
coarse.init()
for step in range(20):
    coarse.push_pull(np.full(100_000, float(step), np.float32), "gradient")
coarse.shutdown()
