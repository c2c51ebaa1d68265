# Pure: no MPI, threads, clock or environment.
"""Plan of a cluster in a box: names, addresses, commands, files, and mpirun's options for it.

[Note: nothing has a name] No namespace is given a path (`ip netns add` would make one), the bridge stands in a
namespace of its own and not among the machine's interfaces, and the nodes share files of a tmpfs that no other mount
namespace shows. So nothing is removed by name, and nothing of the machine's own can be: all of it ends with the
processes that hold the namespaces, and those end with the launcher, also by kill -9. Two clusters may have the same
addresses, since no route leads from one to the other, or to the machine's own network.
"""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coarse.errors import ClusterError
from coarse.launch.cluster.rate import LinkRate
from coarse.launch.cluster.shape import ClusterShape

NODE_INTERFACE = "eth0"
"""Name of a node's end of its link."""
MEMORY_FOLDER = "/dev/shm"
"""Folder where the tmpfs of the cluster is mounted. Every Linux has it, and it holds no files to be kept."""
SHARED_FOLDER = f"{MEMORY_FOLDER}/coarse-cluster"
"""Folder of files that head and nodes share, at the same path in each."""
AGENT = f"{SHARED_FOLDER}/agent"
HOSTS = f"{SHARED_FOLDER}/hosts"
LAUNCHER = f"{SHARED_FOLDER}/launcher"
"""Socket at which ranks tell `coarse run` how far they have come."""
STATES = f"{SHARED_FOLDER}/states"
"""Socket at which `coarse run` gives ranks the descriptors that keep their states."""

_BRIDGE = "switch"
_SUBNET = "10.99.0"
_HARDWARE = "02:00:0a:63:00:"
"""Beginning of hardware addresses. They are stated, since hosts keep each other's for a minute: a node that is made
anew has its old one, and the bridge, which takes that of a port otherwise, its own."""
_HEAD_ADDRESS = f"{_SUBNET}.254"
_PREFIX_BITS = 24


@dataclass(frozen=True)
class Command:
    """Command that runs in the namespaces of the head or of a node."""

    place: str
    argv: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """Plan of a cluster of `shape`; `run_id` sets its names apart from those of another."""

    shape: ClusterShape
    rate: LinkRate | None
    """Rate of every link, in both directions; None leaves them as fast as the machine."""
    run_id: str

    @property
    def head(self) -> str:
        """Name of the host that has the bridge and mpirun, and no ranks."""
        return f"head-{self.run_id}"

    @property
    def nodes(self) -> tuple[str, ...]:
        """Host names of the nodes, in order."""
        return tuple(f"node{number}-{self.run_id}" for number in range(1, self.shape.num_nodes + 1))

    @property
    def network(self) -> str:
        """Addresses of all hosts, as CIDR has it."""
        return f"{_SUBNET}.0/{_PREFIX_BITS}"

    def address(self, name: str) -> str:
        """Return the IPv4 address of the head or of a node."""
        return _HEAD_ADDRESS if name == self.head else f"{_SUBNET}.{self.nodes.index(name) + 1}"

    def hosts_text(self) -> str:
        """Return the contents of /etc/hosts in each."""
        lines = ["127.0.0.1 localhost", *(f"{self.address(name)} {name}" for name in (*self.nodes, self.head))]
        return "".join(f"{line}\n" for line in lines)

    def agent_text(self, holders: Mapping[str, str]) -> str:
        """Return a shell script that runs what mpirun would have run by ssh: `agent HOST COMMAND...`.

        `holders` are the process ids whose namespaces the nodes are. mpirun takes a daemon that a signal ended for one
        that ended well; so the shell stays, and makes an exit status of it.
        """
        entries = ""
        for node in self.nodes:
            enter = shlex.join(enter_argv(holders[node], own_processes=True))
            entries += f'{node}) {enter} sh -c "$*" ;;\n'
        unknown = '*) echo "coarse: no node $host in this cluster" >&2; exit 1 ;;\n'
        return f'#!/bin/sh\nhost=$1\nshift\ncase "$host" in\n{entries}{unknown}esac\nexit $?\n'

    def memory_commands(self) -> list[Command]:
        """Return the commands that give head and nodes a tmpfs and folders.

        They run in the head before the nodes are unshared.
        """
        folders = [SHARED_FOLDER, *(f"{MEMORY_FOLDER}/{node}/{_name(SHARED_FOLDER)}" for node in self.nodes)]
        return [
            Command(self.head, ("mount", "-t", "tmpfs", "-o", "mode=1777", "coarse-cluster", MEMORY_FOLDER)),
            Command(self.head, ("mkdir", "-p", *folders)),
        ]

    def head_commands(self) -> list[Command]:
        """Return the commands that make the bridge, and the head's names for all.

        They run once the file HOSTS is there.
        """
        lines = (
            ("mount", "--bind", HOSTS, "/etc/hosts"),
            ("ip", "link", "set", "lo", "up"),
            ("ip", "link", "add", _BRIDGE, "type", "bridge"),
            ("ip", "link", "set", _BRIDGE, "addrgenmode", "none"),
            ("ip", "link", "set", _BRIDGE, "address", f"{_HARDWARE}fe"),
            ("ip", "address", "add", f"{_HEAD_ADDRESS}/{_PREFIX_BITS}", "dev", _BRIDGE),
            ("ip", "link", "set", _BRIDGE, "up"),
        )
        return [Command(self.head, argv) for argv in lines]

    def node_commands(self, node: str, holder: str) -> list[Command]:
        """Return the commands that join a node to the bridge and limit its link.

        The process `holder` has the node's namespaces.
        """
        port = f"port{self.nodes.index(node) + 1}"
        own = f"{MEMORY_FOLDER}/{node}"
        peer = ("peer", "name", NODE_INTERFACE, "netns", holder)
        address = f"{self.address(node)}/{_PREFIX_BITS}"
        return [
            Command(node, ("mount", "--bind", SHARED_FOLDER, f"{own}/{_name(SHARED_FOLDER)}")),
            Command(node, ("mount", "--rbind", own, MEMORY_FOLDER)),
            Command(node, ("ip", "link", "set", "lo", "up")),
            Command(self.head, ("ip", "link", "add", port, "type", "veth", *peer)),
            *self._end_of_link(self.head, port),
            Command(self.head, ("ip", "link", "set", port, "master", _BRIDGE, "up")),
            *self._end_of_link(node, NODE_INTERFACE),
            Command(node, ("ip", "link", "set", NODE_INTERFACE, "address", self._hardware_address(node))),
            Command(node, ("ip", "address", "add", address, "dev", NODE_INTERFACE)),
            Command(node, ("ip", "link", "set", NODE_INTERFACE, "up")),
        ]

    def leaving_commands(self, node: str) -> list[Command]:
        """Return the commands that take a node that has ended from the bridge, and empty its memory."""
        own = f"{MEMORY_FOLDER}/{node}"
        kept = _name(SHARED_FOLDER)
        return [
            Command(self.head, ("sh", "-c", f"ip link delete port{self.nodes.index(node) + 1} 2>/dev/null || true")),
            Command(self.head, ("find", own, "-mindepth", "1", "-not", "-path", f"{own}/{kept}", "-delete")),
        ]

    def commands(self) -> list[Command]:
        """Return all commands in order, a node's name standing for the process that holds it."""
        joined = [command for node in self.nodes for command in self.node_commands(node, node)]
        return [*self.memory_commands(), *self.head_commands(), *joined]

    def _hardware_address(self, node: str) -> str:
        return f"{_HARDWARE}{self.nodes.index(node) + 1:02x}"

    def _end_of_link(self, place: str, interface: str) -> list[Command]:
        """Return commands for an end of a link: without IPv6, whose greetings would count, within the rate."""
        commands = [Command(place, ("ip", "link", "set", interface, "addrgenmode", "none"))]
        if self.rate is not None:
            limit = ("tc", "qdisc", "add", "dev", interface, "root", *self.rate.token_bucket())
            commands.append(Command(place, limit))
        return commands

    def mpirun_options(self) -> tuple[str, ...]:
        """Return mpirun's options: daemons are started by the agent, and nodes speak TCP.

        The daemons stay below mpirun (else a launcher could not tell when all have ended), each is started by mpirun
        itself, and their files lie in the cluster's memory.
        """
        daemons = {
            "plm": "ssh",
            "plm_ssh_agent": AGENT,
            "plm_ssh_no_tree_spawn": "1",
            "prte_leave_session_attached": "1",
            "prte_if_include": self.network,
            "prte_tmpdir_base": MEMORY_FOLDER,
        }
        messages = {
            "pml": "ob1", "btl": "self,sm,tcp", "btl_tcp_if_include": self.network,
            "btl_tcp_eager_limit": str(TCP_EAGER_BYTES),
        }  # fmt: skip
        options: list[str] = []
        for name, value in daemons.items():
            options += ["--prtemca", name, value]
        for name, value in messages.items():
            options += ["--mca", name, value]
        return tuple(options)


def hold_argv(name: str, *, own_processes: bool) -> tuple[str, ...]:
    """Return the command of a process that unshares namespaces and holds them until its input ends.

    It calls itself `name`, and says so. With `own_processes` its child is the first of a process namespace, whose end
    the kernel makes the end of all processes in it; without, it sees the machine's.
    """
    apart = ("--pid", "--fork", "--kill-child", "--mount-proc") if own_processes else ()
    script = 'hostname "$0" && echo holding && exec cat'
    return ("unshare", "--net", "--uts", "--mount", *apart, "sh", "-c", script, name)


def enter_argv(holder: str, *, own_processes: bool) -> tuple[str, ...]:
    """Return the prefix that runs a command in the namespaces of a process that `hold_argv` started."""
    apart = (f"--pid=/proc/{holder}/ns/pid_for_children",) if own_processes else ()
    return ("nsenter", f"--target={holder}", "--net", "--uts", "--mount", *apart, "--")


def _name(path: str) -> str:
    return path.rpartition("/")[2]


TCP_EAGER_BYTES = 1 << 20
"""Largest message that Open MPI sends over TCP without asking first. Its own 64 KiB have every larger message wait
for an answer, which on a busy link comes behind the other side's messages: on-demand communication took 1.4 times as
long."""
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
"""Bit of each capability (capabilities(7)): to make links and limit them; to unshare, enter and mount."""
PROGRAMS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount or util-linux",
    "hostname": "hostname",
    "env": "coreutils",
}
"""Package that usually has each program."""


def require_capabilities(status_text: str) -> None:
    """Raise ClusterError unless /proc/self/status, as given, shows all needed capabilities."""
    fields = dict(line.split(":", 1) for line in status_text.splitlines() if ":" in line)
    effective = int(fields.get("CapEff", "0").strip(), 16)
    lacking = [name for name, bit in CAPABILITIES.items() if not effective >> bit & 1]
    if lacking:
        raise ClusterError(
            f"--cluster makes network namespaces, which needs root ({' and '.join(CAPABILITIES)}), and this process "
            f"lacks {' and '.join(lacking)}; run it as root (in a container: with both capabilities added), or below "
            "`unshare --user --map-root-user` where the kernel lets users have namespaces, or use a real cluster"
        )


def require_programs(find: Callable[[str], str | None]) -> None:
    """Raise ClusterError unless `find` (as shutil.which) finds all programs."""
    lacking = {name: package for name, package in PROGRAMS.items() if not find(name)}
    if lacking:
        packages = " and ".join(sorted(set(lacking.values())))
        raise ClusterError(
            f"--cluster needs the programs {', '.join(PROGRAMS)}, and {', '.join(lacking)} cannot be found on PATH; "
            f"install {packages}, or extend PATH (/usr/sbin may be missing from it)"
        )
