"""Steps that an optimizer commits by itself, as the launcher hears of them."""

import secrets

from coarse.launch.handing import DescriptorServer
from coarse.launch.state_memory import HeldMemory
from coarse.launch.warm.ranks import needs_of
from coarse.protocol.place import Anywhere
from coarse.transport.commit_note import commit_note


def test_the_launcher_hears_of_steps_and_of_imports_and_loses_neither_with_the_writer():
    address = f"@test-{secrets.token_hex(8)}"
    with HeldMemory([Anywhere()] * 2) as memory, DescriptorServer(address, memory):
        assert memory.progress() == memory.versions() == (0, 0)
        assert memory.layout_of_worker_0() is None
        note = commit_note({"COARSE_STATE_FILES": address})
        assert note is not None
        assert memory.progress() == (0, 0)
        note.put(3)
        note.put(4)
        assert memory.progress() == (4, 4)
        assert memory.versions() == (0, 0), "no worker's state memory has a version"
        layout = memory.layout_of_worker_0()
        assert layout is not None
        assert "numpy" in needs_of(layout)["modules"]
        del note
        again = commit_note({"COARSE_STATE_FILES": address})
        assert again is not None
        assert memory.progress() == (4, 4)
        again.put(5)
        assert memory.progress() == (5, 5)


def test_nobody_is_told_where_no_launcher_starts_the_job_again():
    assert commit_note({}) is None
