"""Cluster in a box, made and taken down: see [Note: nothing has a name] in plan.py."""

import os
import select
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from coarse.errors import ClusterError
from coarse.launch.cluster.interfaces import Crossed, crossed
from coarse.launch.cluster.plan import (
    AGENT,
    HOSTS,
    NODE_INTERFACE,
    ClusterPlan,
    Command,
    enter_argv,
    hold_argv,
    require_capabilities,
    require_programs,
)

_START_S = 20.0
"""Seconds that a namespace, or one command, may take on a busy machine."""
_END_S = 10.0
_REMEDY = "this kernel or container does not permit it; run on a machine (or in a privileged container) that does"


class ClusterBox:
    """Nodes of a plan, for as long as the `with` lasts; all that runs in them ends with it.

    Raises on entering:
        ClusterError: capabilities or programs are missing, or the kernel refused a command.
    """

    def __init__(self, plan: ClusterPlan) -> None:
        self.plan = plan
        self._opened = ExitStack()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._before: dict[str, Crossed] = {}

    def __enter__(self) -> Self:
        require_programs(shutil.which)
        require_capabilities(Path("/proc/self/status").read_text())
        with ExitStack() as opened:
            self._open(opened)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._opened.close()

    def inside(self, argv: Sequence[str]) -> list[str]:
        """Return the command as it runs in the head, in this working directory."""
        return [*self._enter(self.plan.head), "env", f"--chdir={os.getcwd()}", *argv]

    def outside(self, path: str) -> Path:
        """Return the path here of a file of the cluster's memory, which head and nodes share."""
        return Path(f"/proc/{self._holder(self.plan.head)}/root{path}")

    def lost_nodes(self) -> tuple[str, ...]:
        """Return the nodes whose holder has ended, and with it all that ran on them."""
        return tuple(node for node in self.plan.nodes if self._processes[node].poll() is not None)

    def mend(self) -> None:
        """Make the lost nodes anew, with empty memory.

        Raises:
            ClusterError: the head was lost, or the kernel refused a command.
        """
        if not (lost := self.lost_nodes()):
            return
        if self._processes[self.plan.head].poll() is not None:
            raise ClusterError("the head of the cluster in a box was lost, and all nodes with it; start the job again")
        for node in lost:
            for command in self.plan.leaving_commands(node):
                self._run(command)
            self._add_node(node)
        self._write_agent()

    def crossed(self) -> dict[str, Crossed]:
        """Return the bytes that have crossed each node's interface since the cluster was made.

        Nodes that are gone are left out.
        """
        found = {}
        for node, before in self._before.items():
            with suppress(FileNotFoundError, KeyError):  # somebody has killed its holder
                found[node] = self._count(node).since(before)
        return found

    # --- making

    def _open(self, opened: ExitStack) -> None:
        plan = self.plan
        self._hold(opened, plan.head, hold_argv(plan.head, own_processes=False))
        for command in plan.memory_commands():
            self._run(command)
        self.outside(HOSTS).write_text(plan.hosts_text())
        for command in plan.head_commands():
            self._run(command)
        self._opened = opened
        for node in plan.nodes:
            self._add_node(node)
        self._write_agent()

    def _add_node(self, node: str) -> None:
        shared = ("nsenter", f"--target={self._holder(self.plan.head)}", "--mount", "--")
        holder = self._hold(self._opened, node, (*shared, *hold_argv(node, own_processes=True)))
        for command in self.plan.node_commands(node, str(holder)):
            self._run(command)
        self._before[node] = self._count(node)

    def _write_agent(self) -> None:
        agent = self.outside(AGENT)
        agent.write_text(self.plan.agent_text({node: str(self._holder(node)) for node in self.plan.nodes}))
        agent.chmod(0o755)

    def _hold(self, opened: ExitStack, name: str, argv: Sequence[str]) -> int:
        """Start and return the process that has the namespaces of `name`.

        It has them until it is told to end, or this process is gone.
        """
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        opened.callback(_end, process)
        assert process.stdout is not None
        assert process.stderr is not None
        ready, _, _ = select.select([process.stdout], [], [], _START_S)
        if not ready:
            raise ClusterError(f"{' '.join(argv)} has not answered for {_START_S:g} s; is the machine overloaded?")
        if process.stdout.readline().strip() != b"holding":
            said = process.stderr.read().decode(errors="replace").strip()
            raise ClusterError(f"namespaces for {name} were wanted, but {argv[0]} said {said!r}: {_REMEDY}")
        self._processes[name] = process
        return process.pid

    def _run(self, command: Command) -> None:
        argv = [*self._enter(command.place), *command.argv]
        text = " ".join(command.argv)
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, timeout=_START_S, check=False, start_new_session=True
            )
        except subprocess.TimeoutExpired as error:
            raise ClusterError(f"`{text}` on {command.place} has not ended in {_START_S:g} s") from error
        if done.returncode:
            said = done.stderr.strip() or f"status {done.returncode}"
            raise ClusterError(f"`{text}` on {command.place} was refused: {said}; {_REMEDY}")

    def _enter(self, name: str) -> tuple[str, ...]:
        return enter_argv(str(self._holder(name)), own_processes=False)

    def _holder(self, name: str) -> int:
        """Return the process that has the namespaces of `name`."""
        return self._processes[name].pid

    def _count(self, node: str) -> Crossed:
        return crossed(Path(f"/proc/{self._holder(node)}/net/dev").read_text(), NODE_INTERFACE)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a holder, and with it all that runs in its process namespace."""
    for pipe in (process.stdin, process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()  # the child is killed with it: --kill-child
        process.wait()
