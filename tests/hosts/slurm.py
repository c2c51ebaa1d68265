"""Slurm on two guests: its controller on the first, its daemon on both, and control groups that limit memory."""

import re
import secrets

from tests.hosts.guest import Ran
from tests.hosts.initramfs import SHARE
from tests.hosts.jobs import BIN, written
from tests.hosts.pair import ADDRESSES, Pair
from tests.support.launch import REPOSITORY

CPUS = 8
"""Processors that each guest says it has, whatever QEMU gives it: docs' lines want eight."""

_PLACE = "/run/slurm"
_SETTINGS = f"""
ClusterName=guests
SlurmctldHost=node1
SlurmUser=root
AuthType=auth/munge
AuthInfo=cred_expire=10
CryptoType=crypto/munge
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=200
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
StateSaveLocation={_PLACE}/state
SlurmdSpoolDir={_PLACE}/spool
SlurmctldPidFile={_PLACE}/slurmctld.pid
SlurmdPidFile={_PLACE}/slurmd.pid
SlurmdParameters=config_overrides
NodeName={",".join(ADDRESSES)} CPUs={CPUS} RealMemory=2000
PartitionName=all Nodes=ALL Default=YES State=UP
"""
_GROUPS = """
CgroupPlugin=cgroup/v2
IgnoreSystemd=yes
ConstrainRAMSpace=yes
"""
_CONTROLLERS = "+cpuset +cpu +memory +pids"
"""Slurm 22.05 does not find memory where it is the last in the kernel's list: it compares the end of the line, too."""
_START = f"""
set -e
mkdir -p /run/munge {_PLACE}/state {_PLACE}/spool /etc/slurm /etc/munge /var/log/munge /var/lib/munge
cp {SHARE}/munge.key /etc/munge/munge.key
chown -R munge:munge /etc/munge /run/munge /var/log/munge /var/lib/munge
chmod 755 /run/munge && chmod 700 /etc/munge && chmod 400 /etc/munge/munge.key
setpriv --reuid munge --regid munge --clear-groups munged --num-threads 2
mount -t cgroup2 none /sys/fs/cgroup
mkdir -p /sys/fs/cgroup/system.slice
echo '{_CONTROLLERS}' > /sys/fs/cgroup/cgroup.subtree_control
echo '{_CONTROLLERS}' > /sys/fs/cgroup/system.slice/cgroup.subtree_control
cp {SHARE}/slurm.conf {SHARE}/cgroup.conf /etc/slurm/
test "$(hostname)" = node2 || slurmctld -L {_PLACE}/slurmctld.log
slurmd -L {_PLACE}/slurmd.log
"""
_READY = f"""
for attempt in $(seq 60); do test "$(sinfo -h -t idle -o %D)" = {len(ADDRESSES)} && exit 0; sleep 1; done
sinfo; cat {_PLACE}/*.log; exit 1
"""
_NOISE = re.compile(r"^(-{70,}|Sorry!.*|    find-available:not-valid|But I couldn't open.*|    /.*help-pmix.*)\n", re.M)
"""Lines of Open MPI's PMIx about a way of identification that the PMIx of Slurm has and it has not."""


def start_slurm(pair: Pair) -> None:
    """Start Slurm on both guests; AssertionError, with the logs, where the nodes are not idle in a minute."""
    (pair.share / "munge.key").write_bytes(secrets.token_bytes(1024))
    written(pair.first, "slurm.conf", _SETTINGS)
    written(pair.first, "cgroup.conf", _GROUPS)
    pair.on_each(_START, timeout_s=120)
    pair.first.run(_READY, timeout_s=120).checked()


def run_line(pair: Pair, line: str, *, timeout_s: float = 300.0, **environment: str) -> Ran:
    """Run a line of docs on the first guest, in the project's folder; `.venv/bin` is the running environment's."""
    command = line.replace(".venv/bin", str(BIN))
    ran = pair.first.run(command, environment={"PYTHONPATH": str(REPOSITORY), **environment}, timeout_s=timeout_s)
    return Ran(command=ran.command, status=ran.status, output=_NOISE.sub("", ran.output))


def batch_file_of_docs() -> str:
    """Return the batch file that docs/cluster.md shows."""
    page = (REPOSITORY / "docs" / "cluster.md").read_text()
    (found,) = re.findall(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", page, re.S)
    return found
