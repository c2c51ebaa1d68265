"""Two guests with a cable between them that reach each other by ssh, and jobs on both."""

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.hosts.guest import Guest, Ran
from tests.hosts.initramfs import SHARE
from tests.hosts.jobs import PYTHON, mpirun
from tests.hosts.machine import MachinePlan, Nvdimm
from tests.hosts.needs import program
from tests.support.launch import REPOSITORY
from tests.support.preloaded.servers import LIBRARIES

ADDRESSES = {"node1": "10.7.0.1", "node2": "10.7.0.2"}
HOSTFILE = f"{SHARE}/hosts"
ON_BOTH = ("--hostfile", HOSTFILE, "--map-by", "ppr:2:node", "--bind-to", "none")
"""Options of mpirun for two ranks on each guest."""

STALL_S = 20.0
LOSS_SETTINGS = f"stall_timeout_s = {STALL_S}\nstartup_timeout_s = 300\n"
"""Settings of jobs that lose a host."""
LOSS_S = 3.0 * (STALL_S + 30)
"""Seconds within which such a job ends: three times what is stated, since four emulated processors share two."""

_SSH = f"""
rm -rf ~/.ssh && mkdir -m 700 ~/.ssh && cp {SHARE}/key ~/.ssh/id_ed25519 && chmod 600 ~/.ssh/id_ed25519
cp {SHARE}/key.pub ~/.ssh/authorized_keys
printf 'Host *\\n  StrictHostKeyChecking accept-new\\n  LogLevel ERROR\\n' > ~/.ssh/config
cp {SHARE}/key /etc/ssh/host_key && chmod 600 /etc/ssh/host_key && chmod 755 /run/sshd
/usr/sbin/sshd -f /dev/null -h /etc/ssh/host_key -o StrictModes=no -o UsePAM=no || exit 1
"""
"""The shell stays above sshd, which as a child of the first process would take itself for a daemon and never return."""
_SERVER = "/run/tmp/ranks"
_SERVE = f"""
mkfifo {_SERVER}.hold && exec 3<>{_SERVER}.hold
PYTHONPATH={REPOSITORY} PYTHONHASHSEED=1 {PYTHON} coarse/launch/warm/server.py {_SERVER} \
    tests.support.bootstrap:run_forked tests.support.bare_imports {' '.join(LIBRARIES['torch'])} \
    <&3 > {_SERVER}.out 2>&1 &
until grep -q listens {_SERVER}.out; do kill -0 $! || {{ cat {_SERVER}.out; exit 1; }}; sleep 2; done
"""
"""A process of the guest that has imported torch, from which ranks are forked: an import takes a minute here."""


def require_sums(printed: str) -> None:
    """Require that the two workers of `sums.py` say that all is right, and that bytes went from host to host."""
    said = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert [(each["sums"], each["between_nodes"] > 0) for each in said] == [("right", True)] * 2, printed


class Pair:
    """Both guests, ready for jobs of mpirun over ssh, from the beginning of the `with` block to its end."""

    def __init__(
        self, folder: Path, images: Mapping[Path, Path], *, memory_bytes: int = 2560 << 20, pool: Nvdimm | None = None
    ) -> None:
        nvdimms = () if pool is None else (pool,)
        plans = (MachinePlan(name=name, memory_bytes=memory_bytes, nvdimms=nvdimms, addresses=ADDRESSES)
                 for name in ADDRESSES)  # fmt: skip
        self.guests = [Guest(plan, folder, images) for plan in plans]
        self.share = self.guests[0].share
        self._serves = False

    def __enter__(self) -> Self:
        try:
            for guest in self.guests:
                guest.wait_until_ready()
            self._prepare()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()

    @property
    def first(self) -> Guest:
        """The guest that starts jobs."""
        return self.guests[0]

    @property
    def second(self) -> Guest:
        """The other guest."""
        return self.guests[1]

    def on_each(self, command: str, *, timeout_s: float = 600.0) -> list[str]:
        """Run a command on both guests at once and return what it printed there."""
        with ThreadPoolExecutor() as pool:
            return list(pool.map(lambda guest: guest.run(command, timeout_s=timeout_s).checked(), self.guests))

    def run(
        self, program: str, *arguments: object, environment: Mapping[str, str] | None = None,
        options: Sequence[str] = (), timeout_s: float = 600.0,
    ) -> Ran:  # fmt: skip
        """Run a program on two ranks of each guest."""
        return self.first.run(
            self.command(program, *arguments, environment=environment, options=options),
            environment=environment, timeout_s=timeout_s,
        )  # fmt: skip

    def command(
        self, program: str, *arguments: object, environment: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> str:  # fmt: skip
        """Return the command line of such a job; mpirun hands the environment on."""
        exported = [part for name in environment or {} for part in ("-x", name)]
        return mpirun(4, program, *arguments, options=(*ON_BOTH, *exported, *options))

    def train(
        self, script: Path, *arguments: object, environment: Mapping[str, str] | None = None, alone: bool = False,
        timeout_s: float = 900.0,
    ) -> Ran:  # fmt: skip
        """Run a script that imports torch on four ranks, on both guests or all on the first; ranks are forked."""
        if not self._serves:
            self.on_each(_SERVE)
            self._serves = True
        where = ["--bind-to", "none"] if alone else list(ON_BOTH)
        exported = [part for name in (*(environment or {}), "PYTHONHASHSEED") for part in ("-x", name)]
        forked = (PYTHON, "-I", "-S", REPOSITORY / "coarse" / "launch" / "warm" / "stand_in.py", _SERVER)
        command = mpirun(4, script, *arguments, options=[*where, *exported], interpreter=forked)
        return self.first.run(
            command, environment={**(environment or {}), "PYTHONHASHSEED": "1"}, timeout_s=timeout_s
        )

    def lose_second(self, environment: Mapping[str, str]) -> tuple[Ran, float]:
        """Run a job on both, kill the second guest after the first sums; return its end, and the seconds until it."""
        command = self.command("until.py", 600, f"{SHARE}/began", environment=environment)
        running = self.first.begin(command, environment=environment, timeout_s=400)
        self.first.wait_for(f"{SHARE}/began0", f"{SHARE}/began1")
        self.second.kill()
        killed_s = time.monotonic()
        return running.result(), time.monotonic() - killed_s

    def _prepare(self) -> None:
        keygen = [str(program("ssh-keygen")), "-q", "-t", "ed25519", "-N", "", "-f", str(self.share / "key")]
        subprocess.run(keygen, check=True)
        (self.share / "hosts").write_text("".join(f"{name} slots=2\n" for name in ADDRESSES))
        self.on_each(_SSH)

    def _kill(self) -> None:
        for guest in self.guests:
            guest.kill()
