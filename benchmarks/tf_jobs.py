"""The processes of one contender of `tf_step.py`, and the talk with them: a line of JSON each way.

Each contender trains in processes of its own, since TensorFlow allows one set of threads and of collectives in a
process. All are there from the beginning; who has no turn waits for a line and uses no processor.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from benchmarks.tf_contenders import NUM_DEVICES, NUM_WORKERS, environment_of, is_ours

_WORKER_SCRIPT = Path(__file__).parent / "tf_worker.py"
_START_S, _ANSWER_S, _END_S, _TERMINATE_S = 180.0, 300.0, 60.0, 10.0
_LAST_LINES = 20


class Worker:
    """A worker process that has said hello; `worker` is its number."""

    def __init__(self, connection: socket.socket) -> None:
        self._lines: IO[str] = connection.makefile("rw", encoding="utf-8")
        connection.settimeout(_ANSWER_S)
        self.hello = self.answer()

    def ask(self, request: Mapping[str, object]) -> None:
        """Say what to do."""
        self._lines.write(json.dumps(request) + "\n")
        self._lines.flush()

    def answer(self) -> dict[str, Any]:
        """What came of it; EOFError from a process that ended."""
        line = self._lines.readline()
        if not line:
            raise EOFError("a worker's process ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Job:
    """One contender's two workers, and its memory devices where it has some."""

    def __init__(self, contender: str, folder: Path, *arguments: str) -> None:
        self.contender = contender
        self._log = folder / f"{contender}{''.join(arguments)}.log"
        address = folder / f"{contender}{''.join(arguments)}.socket"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(address))
            listener.listen(NUM_WORKERS)
            listener.settimeout(_START_S)
            command = [str(_WORKER_SCRIPT), "--contender", contender, "--talk", str(address), *arguments]
            self._processes = self._start(command)
            workers = [Worker(self._accepted(listener)) for _ in range(NUM_WORKERS)]
        self._workers = sorted(workers, key=lambda worker: int(worker.hello["worker"]))

    @property
    def num_parameters(self) -> int:
        """Of the model that it trains."""
        return int(self._workers[0].hello["num_parameters"])

    @property
    def versions(self) -> dict[str, str]:
        """Of TensorFlow and Keras."""
        return dict(self._workers[0].hello["versions"])

    def process_ids(self) -> list[int]:
        """Its processes that run now, launchers included."""
        return [found for process in self._processes for found in family_of(process.pid)]

    def ask(self, **request: object) -> list[dict[str, Any]]:
        """Every worker's answer; all are asked before any is waited for. RuntimeError, with the log, if one failed."""
        try:
            for worker in self._workers:
                worker.ask(request)
            return [worker.answer() for worker in self._workers]
        except (EOFError, OSError) as error:
            raise RuntimeError(f"{self.contender} failed at {request}: {error!r}\n{self._last_lines()}") from error

    def end(self) -> None:
        """Let the processes leave, and wait for them; whoever stays is ended."""
        for worker in self._workers:
            worker.ask({"ask": "end"})
        for process in self._processes:
            process.wait(_END_S)

    def kill(self) -> None:
        """End what is left of a comparison that failed; the peer ignores SIGTERM."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(_TERMINATE_S)
            except subprocess.TimeoutExpired:
                process.kill()

    def _start(self, command: Sequence[str]) -> list[subprocess.Popen[bytes]]:
        if is_ours(self.contender):
            team = ["--workers", str(NUM_WORKERS), "--devices", str(NUM_DEVICES), "--mode", self.contender]
            return [self._process([sys.executable, "-m", "coarse", "run", *team, *command], {})]
        ports = free_ports(NUM_WORKERS)
        return [
            self._process(
                [sys.executable, *command, "--worker", str(worker)], environment_of(self.contender, worker, ports)
            )
            for worker in range(NUM_WORKERS)
        ]

    def _process(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _accepted(self, listener: socket.socket) -> socket.socket:
        try:
            return listener.accept()[0]
        except TimeoutError as error:
            self.kill()
            raise RuntimeError(f"{self.contender} did not start in {_START_S:g} s\n{self._last_lines()}") from error

    def _last_lines(self) -> str:
        return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:])


def family_of(process_id: int) -> list[int]:
    """A process and all that descend from it, as Linux lists them; empty once it has ended."""
    family, tasks = [process_id], Path(f"/proc/{process_id}/task")
    try:
        for task in tasks.iterdir():
            for child in (task / "children").read_text(encoding="ascii").split():
                family += family_of(int(child))
    except (FileNotFoundError, ProcessLookupError):
        return []
    return family


def free_ports(number: int) -> list[int]:
    """Ports of the loopback interface that nobody uses at the moment."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [int(opened.getsockname()[1]) for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports
