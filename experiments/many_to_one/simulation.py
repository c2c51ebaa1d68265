"""Many-to-one push and pull by switches, in virtual time, over links that lose, repeat and delay messages by a seed.

Each packet carries a number in place of its values, whose sums and copies are checked at their ends.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from coarse.luwu.many_to_one.switch import PARENT
from experiments.many_to_one.go_back_n import SILENCE_S
from experiments.many_to_one.links import Network, Node, Wires
from experiments.many_to_one.nodes import End, GoBackSwitch, Job, Switch, TurningSwitch


@dataclass(frozen=True)
class Outcome:
    """What a simulated push and pull took (kind: simulated)."""

    push_s: float
    """Until the optimizer had the last sum."""
    pull_s: float
    """Until the last worker had the last packet."""
    num_sent: int
    """Packets on all links, those that were lost too."""
    num_resent: int
    """Packets that a sender sent again."""


def simulate(
    fan_outs: Sequence[int],
    num_packets: int,
    network: Network,
    *,
    window: int = 1024,
    seed: int = 0,
    go_back_n: bool = False,
    all_reduce: bool = False,
    silence_s: float = SILENCE_S,
    first: int = 0,
) -> Outcome:
    """Push and pull `num_packets` each by a tree of switches, at once, to their ends.

    Args:
        fan_outs: how many children the root switch has, and each of these, and so on; the last ones are workers.
        window: slots of a switch, and packets of a receive buffer.
        go_back_n: the paper's protocol, with one switch, in place of selective repeat; `silence_s` is its own.
        all_reduce: the root switch sends sums back to the workers, in place of an optimizer; push_s is 0.
        first: the first packet's number.

    Raises:
        ValueError: go-back-N with more than one switch, or as an all-reduce.
        AssertionError: a wrong sum or copy, or an end that is never reached.
    """
    if go_back_n and (len(fan_outs) > 1 or all_reduce):
        raise ValueError(
            f"go-back-N is simulated with one switch and an optimizer, fan_outs={tuple(fan_outs)}, "
            f"all_reduce={all_reduce} came"
        )
    wires = Wires(network, random.Random(seed).random)
    job = Job(
        wires=wires,
        window=window,
        first=first,
        end=first + num_packets,
        is_go_back_n=go_back_n,
        is_all_reduce=all_reduce,
        silence_s=silence_s,
    )
    if all_reduce:
        _fill(job, TurningSwitch(job, fan_outs[0]), fan_outs)
    else:
        wires.join(End(job, "optimizer", "push"), 0, _switch(job, fan_outs), PARENT)
    for node in wires.nodes:
        node.begin()
    wires.engine.run()
    assert not job.awaiting, f"never got all: {sorted(job.awaiting)}"
    resent = sum(sender.num_resent for sender in job.senders)
    return Outcome(job.done_s.get("push", 0.0), job.done_s["pull"], wires.num_sent, resent)


def _switch(job: Job, fan_outs: Sequence[int]) -> Switch | GoBackSwitch:
    """A switch with all that is below it."""
    switch = GoBackSwitch(job, fan_outs[0]) if job.is_go_back_n else Switch(job, fan_outs[0])
    _fill(job, switch, fan_outs)
    return switch


def _fill(job: Job, switch: Node, fan_outs: Sequence[int]) -> None:
    """Join a switch's children to it."""
    for child in range(fan_outs[0]):
        if len(fan_outs) > 1:
            job.wires.join(switch, child, _switch(job, fan_outs[1:]), PARENT)
        else:
            job.num_workers += 1
            name = f"worker {job.num_workers - 1}"
            job.wires.join(switch, child, End(job, name, "pull", job.num_workers - 1), 0)
