"""Questions of a worker that has waited too long: it asks optimizer nodes for what they wait."""

import itertools
from collections.abc import Callable, Sequence

from coarse.client.link import DeviceLink
from coarse.client.protocol import ToDevice
from coarse.client.refusals import ANSWER_S
from coarse.luwu.records import PagedQuery, PagedStatus


class Inquiry:
    """Inquiry about one model."""

    def __init__(self, link: DeviceLink, number: int, near: Callable[[int], int]) -> None:
        """Start without questions; `near` gives the device of this host by which an optimizer node is reached."""
        self._link = link
        self._number = number
        self._near = near
        self._tokens = itertools.count(1)
        self._statuses: dict[int, str] = {}

    def on_status(self, status: PagedStatus) -> None:
        """Note a node's answer."""
        self._statuses[status.token] = status.text

    def reasons(self, nodes: Sequence[int]) -> str:
        """Return each node's answer as text for people; a node has `ANSWER_S` seconds to answer."""
        client = self._link.protocol.client
        tokens = {next(self._tokens): device for device in nodes}
        self._link.tell([
            ToDevice(self._near(device), PagedQuery(client, device, self._number, token))
            for token, device in tokens.items()
        ])  # fmt: skip
        self._link.wait_until(lambda: tokens.keys() <= self._statuses.keys(), ANSWER_S)
        reasons = []
        for node, token in enumerate(tokens):
            text = self._statuses.pop(token, f"it did not answer within {ANSWER_S:g} s")
            reasons.append(f"optimizer node {node}: {text or 'it waits for nothing'}")
        return "; ".join(reasons)
