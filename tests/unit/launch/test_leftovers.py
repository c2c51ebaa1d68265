"""Segments of shared memory that killed ranks leave are found by what their processes have mapped, and removed."""

import mmap
import os
import re

from coarse.launch import leftovers


def test_files_of_a_job_are_found_by_its_processes_and_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers, "_SHARED", tmp_path)
    monkeypatch.setattr(leftovers, "_SEGMENT", re.compile(rf"{tmp_path}/(sm_segment\.\S+\.)\d+$", re.MULTILINE))
    own, of_dead, other = (tmp_path / f"sm_segment.host.0.{name}" for name in ("4a0001.0", "4a0001.1", "5b0001.0"))
    for path in (own, of_dead, other):
        path.write_bytes(bytes(mmap.PAGESIZE))
    with own.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        jobs = leftovers.jobs_of([os.getpid(), 1 << 30])  # the second has ended
    assert jobs == {"sm_segment.host.0.4a0001."}
    leftovers.remove(jobs)
    assert list(tmp_path.iterdir()) == [other]
