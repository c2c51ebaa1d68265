"""Sleeping to the microsecond: epoll rounds its time-out up to a millisecond, select does not."""

import select

from coarse.transport.mailbox import Mailbox


class PunctualMailbox(Mailbox):
    """A mailbox whose sleep ends when its time is over, not up to a millisecond later."""

    def _block(self, timeout_s: float) -> list[tuple[int, int]]:
        if timeout_s > 0:
            select.select([self._poll], [], [], timeout_s)
        return self._poll.poll(0.0)
