"""Run of a `coarse run` job in a cluster in a box, with a count of the bytes between its nodes."""

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from coarse.launch.cluster.box import ClusterBox
from coarse.launch.cluster.interfaces import Crossed, NodeTraffic, carried_by_nodes, traffic_lines
from coarse.launch.cluster.plan import LAUNCHER, STATES, ClusterPlan
from coarse.launch.cluster.rate import LinkRate
from coarse.launch.cluster.shape import hosts_of_ranks, require_shape, shape_from_text
from coarse.launch.handing import DescriptorServer
from coarse.launch.mpirun import JobEnd, run_forwarding_signals, run_job
from coarse.launch.rank_exits import Departures
from coarse.launch.restarts import run_with_restarts
from coarse.launch.state_memory import HeldMemory
from coarse.launch.training_run import TrainingRun
from coarse.launch.watch import Doorstep, Watch
from coarse.protocol.endurance import Endurance
from coarse.protocol.partition_file import stated_partition
from coarse.transport.launcher import HANDED


class ClusterRun:
    """Training run on the nodes of a cluster in a box.

    Args:
        request: what to run; its partition is replaced if the configuration states none.
        text: NODESxWORKERS.
        rate: limit of each link; None for no limit.
        devices_per_node: None for as many as the configuration or the workers ask for.
        is_stated: whether the request's partition is the configuration's.

    Raises:
        ConfigError: numbers that cannot be, or that the configuration's partition contradicts.
    """

    def __init__(
        self, request: TrainingRun, text: str, rate: LinkRate | None, *, devices_per_node: int | None, is_stated: bool
    ) -> None:
        stated = stated_partition(request.partition) if is_stated else None
        shape = shape_from_text(text, devices_per_node, stated)
        self.plan = ClusterPlan(shape=shape, rate=rate, run_id=secrets.token_hex(3))
        partition = request.partition if is_stated else shape.partition
        hosts = hosts_of_ranks(len(stated_partition(partition).places), self.plan.nodes)
        self._request = replace(request, partition=partition, hosts=hosts)
        require_shape(self._request.table, shape, hosts)

    def argv(self) -> list[str]:
        """Return the mpirun line, as it runs in the head."""
        return self._request.argv(self.plan.mpirun_options())

    def run(self, endures: Endurance, *, is_pooled: bool) -> int:
        """Make the cluster, run the job to its end, print the crossed bytes, and return its exit status.

        Args:
            endures: whether and how the job is started again.
            is_pooled: states of workers outlive their node.

        Raises:
            ClusterError: this machine or user cannot make the cluster.
        """
        with ClusterBox(self.plan) as box:
            if endures.is_asked:
                status, watch = self._run_again(box, endures, is_pooled=is_pooled)
            else:
                watch = self._watch(box, at_once=False)
                status = run_forwarding_signals(box.inside(self.argv()), os.environ, watch)
            rows = self._traffic(box.crossed(), watch)
        print(*traffic_lines(rows, self.plan.rate.text if self.plan.rate else None), sep="\n", flush=True)
        return status

    def _watch(self, box: ClusterBox, *, at_once: bool) -> Watch:
        departures = Departures(self._request.num_ranks, self._request.light_ranks(), at_once=at_once)
        bound = box.outside(LAUNCHER)
        bound.unlink(missing_ok=True)
        return Watch(departures, Doorstep(bound=str(bound), told=LAUNCHER))

    def _run_again(self, box: ClusterBox, endures: Endurance, *, is_pooled: bool) -> tuple[int, Watch]:
        """Start the job again when a process of it dies, or a node.

        Return its status, and the watch of the last start.
        """
        request = self._request
        watches: list[Watch] = []

        def attempt(told: Mapping[str, str], forked_at: str | None, end_others: Callable[[], None]) -> JobEnd:
            box.mend()
            watches.append(self._watch(box, at_once=True))
            ended = run_job(box.inside(self.argv()), os.environ, watches[-1], at_once=end_others, told=told)
            lost = box.lost_nodes()
            ranks = [rank for rank, host in enumerate(request.hosts) if host in lost]
            workers = tuple(worker for rank in ranks if (worker := request.table.client_of(rank)) is not None)
            return replace(ended, lost_nodes=lost, lost_workers=workers)

        @contextmanager
        def reach(memory: HeldMemory) -> Iterator[Mapping[str, str]]:
            with DescriptorServer(str(box.outside(STATES)), memory):
                yield {"COARSE_STATE_MEMORY": f"{HANDED}{STATES}", "COARSE_STATE_FILES": STATES}

        status = run_with_restarts(
            attempt, request.state_places, replace(endures, cold=True), os.environ, reach=reach,
            outlives_nodes=is_pooled,
        )  # fmt: skip
        return status, watches[-1]

    def _traffic(self, interfaces: dict[str, Crossed], watch: Watch) -> Sequence[NodeTraffic]:
        request, ranks = self._request, {}
        for node in self.plan.nodes:
            ranks[node] = frozenset(rank for rank, host in enumerate(request.hosts) if host == node)
        told = {rank: Crossed(sent_bytes=sent, received_bytes=got) for rank, (sent, got) in watch.carried.items()}
        carried = carried_by_nodes(told, ranks)
        reduced = {
            node: [watch.reduced[rank] for rank in on_node & watch.reduced.keys()] for node, on_node in ranks.items()
        }
        return [
            NodeTraffic(
                node=node,
                interface=interfaces.get(node),
                carried=carried[node],
                reduced_bytes=max(reduced[node], default=None),
            )
            for node in self.plan.nodes
        ]
