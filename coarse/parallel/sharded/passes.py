# Pure: no MPI, threads, clock or environment.
"""Whether a backward's forward was overtaken by another forward of the same model."""

from __future__ import annotations


class Passes:
    """The forwards of one model that may still have a backward.

    [Note: overtaken forwards] A backward uses what its forward had gathered, and so may take it from what is kept. Not
    where another forward came between: a script may have changed frozen parameters for it, to evaluate averaged or
    merged weights, and changed them back. Then the backward finds out anew what has changed. A step of the optimizer
    ends all that: autograd refuses a backward through parameters that were changed since.
    """

    def __init__(self) -> None:
        self._num_pending = 0
        self._is_overtaken = False
        self._task: int | None = None

    def on_forward(self, *, is_training: bool) -> None:
        """A forward begins; `is_training` where a backward may follow."""
        self._is_overtaken |= self._num_pending > 0
        self._num_pending += is_training

    def on_step(self) -> None:
        """Trainable parameters have changed."""
        self._num_pending = 0
        self._is_overtaken = False

    def on_backward(self, task: int) -> bool:
        """A backward, numbered `task`, has reached a unit; whether it has to find out what has changed."""
        if task == self._task:
            return False
        self._task = task
        was_overtaken = self._is_overtaken
        self._num_pending = max(0, self._num_pending - 1)
        self._is_overtaken &= self._num_pending > 0
        return was_overtaken
