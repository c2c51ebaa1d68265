"""What is being called: from what TensorFlow or Keras does, whose own hooks say too little."""

import sys
from collections.abc import Iterator
from types import FrameType


def callers() -> Iterator[tuple[str, object]]:
    """The methods that are being called, innermost first: their names and objects."""
    for frame in frames():
        yield frame.f_code.co_name, frame.f_locals.get("self")


def frames() -> Iterator[FrameType]:
    """What is being called, innermost first."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back
