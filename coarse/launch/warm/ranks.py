"""Process that ranks are forked from when a job starts again; it starts once the job has committed.

It runs beside the job.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from coarse.launch.leftovers import jobs_of
from coarse.launch.mpirun import end_members, session_members, tell

_HERE = Path(__file__).parent
_ENTRY = "coarse.launch.warm.program:run"
_LISTENS = b"listens\n"


def stand_in_arguments(socket_path: str) -> tuple[str, ...]:
    """Return the arguments before a program that have it forked by the process at a socket.

    They stand between the interpreter and the program.
    """
    return ("-I", "-S", str(_HERE / "stand_in.py"), socket_path)


class WarmRanks:
    """Process from which ranks are forked, one at most; it ends with the launcher, and its ranks with it."""

    def __init__(self, environ: Mapping[str, str], further: Sequence[str]) -> None:
        """Prepare without a process; `further` are modules that users name."""
        self._environ = environ
        self._further = further
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._listens = False
        self._needs: Mapping[str, object] | None = None
        self._shared: set[str] = set()

    def start(self, needs: Mapping[str, object]) -> None:
        """Start importing the modules that a worker has imported, as it told at its commit.

        The variables that libraries read when they are imported count, too.
        """
        if self._process is not None:
            return
        self._needs = needs
        modules, variables = needs["modules"], needs["variables"]
        assert isinstance(modules, list)
        assert isinstance(variables, dict)
        self._folder = tempfile.TemporaryDirectory(prefix="coarse-ranks-")
        self._path = f"{self._folder.name}/forks"
        self._errors = Path(self._folder.name) / "errors"
        named = [*(f"?{module}" for module in modules), *self._further]
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(_HERE / "server.py"), self._path, _ENTRY, *named],
                env={**self._environ, **variables}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                start_new_session=True,
            )  # fmt: skip

    def socket_path(self) -> str | None:
        """Return the socket where ranks are forked, None while there is none.

        A process that has ended is reported, and left.
        """
        if self._process is None:
            return None
        assert self._process.stdout is not None
        if not self._listens and select.select([self._process.stdout], [], [], 0)[0]:
            self._listens = os.read(self._process.stdout.fileno(), len(_LISTENS)) == _LISTENS
        if self._process.poll() is not None or (not self._listens and self._has_ended()):
            was_killed = self._process.returncode < 0
            why = "killed" if was_killed else self._last_word()
            tell(f"the process that imports for ranks has ended ({why}); they import themselves now")
            self.close()
            if was_killed and self._needs is not None:
                self.start(self._needs)
            return None
        return self._path if self._listens else None

    def _last_word(self) -> str:
        """Return the last line that it has written to standard error."""
        return "".join(self._errors.read_text(errors="replace").strip().splitlines()[-1:])

    def _has_ended(self) -> bool:
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0)
            return True
        return False

    def end_ranks(self) -> None:
        """Kill all forked processes that have not ended, and return when they have."""
        if self._process is not None:
            shared, self._shared = self._shared, set()
            end_members(self._process.pid, (signal.SIGKILL,), but=self._process.pid, shared=shared)

    def look(self) -> None:
        """Note which files forked ranks share.

        They are removed with the ranks also if these are killed one by one.
        """
        if (process := self._process) is not None and not self._shared:
            self._shared = jobs_of(session_members(process.pid))

    def close(self) -> None:
        """End the process, and all that it has forked."""
        if self._process is None:
            return
        self.end_ranks()
        self._process.kill()
        self._process.communicate()
        assert self._folder is not None
        self._folder.cleanup()
        self._process, self._folder, self._listens = None, None, False


def needs_of(layout: bytes) -> Mapping[str, object]:
    """Return a worker's report of its imports at a commit."""
    found: dict[str, object] = json.loads(json.loads(layout)["imports"])
    return found
