"""Note to the launcher on steps that are committed elsewhere than in state memory.

An optimizer that keeps itself commits so. A job that starts again hears of these steps, and its ranks are forked where
their libraries are imported.
"""

import json
from collections.abc import Mapping

import numpy as np

from coarse.storage.state_file import StateFile
from coarse.transport.handed import ask_for_file
from coarse.transport.imports import imports
from coarse.transport.launcher import told_to_this_job

NAME = "committed-elsewhere"
"""Name of the launcher's file: a slot without data, whose version is the newest committed step."""


class CommitNote:
    """The launcher's note, as the one worker that writes it has it."""

    def __init__(self, address: str) -> None:
        """Open the note at the `address` at which the launcher hands over files.

        Raises:
            StorageError: nobody of this user answers there.
            CapacityError: the machine has no room for a few pages.
        """
        descriptor = ask_for_file(address, NAME, makes=True)
        assert descriptor is not None, "made where there is none"
        self._file = StateFile(descriptor, "the launcher's note of commits")
        self._layout = json.dumps({"imports": imports()}).encode()
        self._file.reserve(0, len(self._layout))

    def put(self, step: int) -> None:
        """Say that a step, from 1 on, is the newest committed one."""
        self._file.begin(0, len(self._layout))
        self._file.record(step, self._layout, np.empty(0, np.uint32))


def commit_note(environ: Mapping[str, str]) -> CommitNote | None:
    """Return the note of the launcher that starts this job again; None where none does."""
    address = told_to_this_job(environ).get("COARSE_STATE_FILES")
    return None if address is None else CommitNote(address)
