"""A guest: another kernel, in a QEMU that ends with the process that started it."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.hosts.initramfs import write_initramfs
from tests.hosts.machine import MachinePlan, qemu_arguments
from tests.hosts.needs import kernels, program
from tests.support.launch import REPOSITORY

AGENT = Path(__file__).with_name("agent.py")
BOOT_S = 240.0
"""How long a guest may take until its agent answers; twenty seconds on a machine that does nothing else."""

COMMAND_S = 600.0
BEGUN_S = 200.0
"""How long a job may take until it says by files that it has begun."""
_PYTHON = os.path.realpath(sys.executable)
"""The interpreter without the virtual environment, which the agent mounts."""

_LINK_S = 30.0
_POLL_S = 0.05
ENVIRONMENT = {
    "PATH": f"{sys.prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A command's status, None where its time was over, and what it and its errors wrote, in their order."""

    command: str
    status: int | None
    output: str

    def checked(self) -> str:
        """Return the output of a command that ended well; AssertionError otherwise."""
        assert self.status == 0, f"{self.command}\nended with {self.status}:\n{self.output}"
        return self.output


class Guest:
    """A guest of a plan, from its start until `kill` or the end of the `with` block."""

    def __init__(self, plan: MachinePlan, folder: Path, images: Mapping[Path, Path]) -> None:
        """Start the guest without waiting.

        Args:
            plan: its machine.
            folder: the one of all guests of a network, which gets one of its own.
            images: by folder the image that is mounted over it (`write_image`).
        """
        self.plan, self._folder = plan, folder / plan.name
        self.share = folder / "share"
        self.share.mkdir(exist_ok=True)
        self._folder.mkdir(exist_ok=True)
        kernel = kernels()[-1]
        told = {"name": plan.name, "addresses": plan.addresses, "folders": [str(folder) for folder in images]}
        initramfs = self._folder / "initramfs.gz"
        write_initramfs(initramfs, kernel, [_PYTHON, str(AGENT), json.dumps(told)])
        arguments = qemu_arguments(
            plan, kernel, folder=self._folder, share=self.share, initramfs=initramfs, images=images.values()
        )
        qemu = [str(program("setpriv")), "--pdeathsig", "KILL", str(program("qemu-system-x86_64")), *arguments]
        (self._folder / "agent").unlink(missing_ok=True)
        with open(self._folder / "qemu.txt", "wb") as log:
            self._process = subprocess.Popen(qemu, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._agent: _Agent | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def wait_until_ready(self) -> None:
        """Return once the guest runs commands; AssertionError, with its console, where it does not in BOOT_S."""
        until_s = time.monotonic() + BOOT_S
        while self._agent is None:
            self._check_alive(until_s)
            try:
                self._agent = _Agent(self._folder / "agent")
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(_POLL_S)
        while not self._agent.ready.wait(_POLL_S):
            self._check_alive(until_s)

    def begin(
        self, command: str, *, timeout_s: float = COMMAND_S, environment: Mapping[str, str] | None = None,
        folder: str = str(REPOSITORY),
    ) -> "Future[Ran]":  # fmt: skip
        """Begin a command in a shell of the guest and return at once."""
        assert self._agent is not None, "wait_until_ready comes first"
        given = {**ENVIRONMENT, **(environment or {})}
        request = {"command": command, "environment": given, "timeout_s": timeout_s, "folder": folder}
        return self._agent.ask(request)

    def run(
        self, command: str, *, timeout_s: float = COMMAND_S, environment: Mapping[str, str] | None = None,
        folder: str = str(REPOSITORY),
    ) -> Ran:  # fmt: skip
        """Run a command in a shell of the guest and return how it ended."""
        begun = self.begin(command, timeout_s=timeout_s, environment=environment, folder=folder)
        return begun.result(timeout_s + _LINK_S)

    def wait_for(self, *paths: str) -> None:
        """Return once the guest has all these files; AssertionError where it does not in BEGUN_S."""
        there = " -a ".join(f"-e {path}" for path in paths)
        self.run(f"until [ {there} ]; do sleep 1; done", timeout_s=BEGUN_S).checked()

    def console(self) -> str:
        """Return what the guest's kernel and QEMU printed."""
        texts = (self._folder / name for name in ("console.txt", "qemu.txt"))
        return "\n".join(text.read_text(errors="replace") for text in texts if text.exists())

    def kill(self) -> None:
        """End the guest as a loss of power does; what has no answer yet raises GuestGone."""
        self._process.kill()
        self._process.wait()
        if self._agent is not None:
            self._agent.close()

    def _check_alive(self, until_s: float) -> None:
        is_up = self._process.poll() is None and time.monotonic() < until_s
        assert is_up, f"{self.plan.name} does not boot:\n{self.console()[-4000:]}"


class GuestGone(Exception):
    """The guest ended before it answered."""


class _Agent:
    """The host's end of a guest's port: sends requests and hands each answer to who waits for it."""

    def __init__(self, path: Path) -> None:
        self.ready = threading.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(os.fspath(path))
        except OSError:
            self._socket.close()
            raise
        self._asked: dict[int, tuple[str, Future[Ran]]] = {}
        self._next, self._lock = 0, threading.Lock()
        threading.Thread(target=self._receive, daemon=True).start()

    def ask(self, request: dict[str, Any]) -> "Future[Ran]":
        """Send a request; its answer comes to the future that is returned."""
        answer: Future[Ran] = Future()
        with self._lock:
            self._next += 1
            self._asked[self._next] = (request["command"], answer)
            self._socket.sendall(json.dumps({"id": self._next, **request}).encode() + b"\n")
        return answer

    def close(self) -> None:
        """Close the guest's port; the thread that receives ends with it."""
        self._socket.close()

    def _receive(self) -> None:
        try:
            for line in self._socket.makefile("rb"):
                document = json.loads(line)
                if "id" not in document:
                    self.ready.set()
                    continue
                command, answer = self._asked.pop(document["id"])
                answer.set_result(Ran(command=command, status=document["status"], output=document["output"]))
        except (OSError, ValueError):
            pass  # the guest was killed in the middle of a line
        for command, answer in list(self._asked.values()):
            answer.set_exception(GuestGone(command))
