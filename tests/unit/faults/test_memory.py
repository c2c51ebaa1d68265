"""Where states are kept: the user's own folder, locked, of one job; or the launcher's descriptors."""

import os
from pathlib import Path

import numpy as np
import pytest

from coarse.errors import ConfigError, StorageError
from coarse.faults import memory
from coarse.faults.memory import StateMemory, opened_at, state_memory
from coarse.launch.state_memory import HeldMemory
from coarse.protocol.commits import Seen
from coarse.protocol.config import Config, FaultSettings
from coarse.protocol.place import Anywhere, Folder, NumaNode


def in_folder(path, worker: int = 0, num_workers: int = 2) -> StateMemory:
    config = Config(faults=FaultSettings(memory=f"folder:{path}"))
    found = state_memory(config, {}, worker, num_workers)
    assert found is not None
    return found


def commit(kept: StateMemory, version: int, text: bytes = b"{}") -> None:
    slot = kept.slot(version)
    data = slot.begin(8, len(text))
    data[:] = version
    slot.record(version, text, np.array([slot.checksum(data)], np.uint32))


def test_without_a_setting_nothing_is_kept():
    assert state_memory(Config(), {}, 0, 2) is None


def test_a_folder_is_made_for_its_user_alone_and_keeps_two_versions(tmp_path):
    kept = in_folder(tmp_path / "new" / "er")
    assert (tmp_path / "new" / "er").stat().st_mode & 0o777 == 0o700
    for version in (1, 2, 3):
        commit(kept, version)
    kept.close()
    seen, whole = in_folder(tmp_path / "new" / "er").found()
    assert seen == Seen((2, 3))
    assert whole[3].data.tolist() == [3] * 8
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "new" / "er").iterdir()} == {0o600}


def test_another_worker_s_version_can_be_read(tmp_path):
    own, other = in_folder(tmp_path / "kept"), in_folder(tmp_path / "kept", worker=1)
    commit(other, 4)
    assert own.of_other(1, 4).data.tolist() == [4] * 8
    with pytest.raises(StorageError, match=r"slot 0 of worker 1's state memory .* has version 4, not 2"):
        own.of_other(1, 2)


def test_a_folder_that_others_may_write_to_is_refused(tmp_path):
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(ConfigError, match=r"has mode 755; name a folder of your own with mode 700"):
        in_folder(tmp_path / "open")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        in_folder(tmp_path / "file" / "below")


def test_a_folder_of_more_workers_is_refused(tmp_path):
    in_folder(tmp_path / "kept", worker=2, num_workers=3).close()
    with pytest.raises(StorageError, match=r"has worker-2.0, and this job has 2 workers"):
        in_folder(tmp_path / "kept")


def test_files_of_a_job_that_runs_are_refused_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_LOCK_S", 0.1)
    first = in_folder(tmp_path / "kept")
    with pytest.raises(StorageError, match=r"another job has had .*worker-0.lock in use"):
        in_folder(tmp_path / "kept")
    first.close()
    in_folder(tmp_path / "kept").close()


def test_damage_is_told_from_absence(tmp_path):
    kept = in_folder(tmp_path / "kept")
    commit(kept, 5)
    commit(kept, 6)
    with (tmp_path / "kept" / "worker-0.1").open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff")
    assert kept.found()[0] == Seen((6,), (5,))


def test_the_launcher_s_memory_is_found_by_its_word_and_has_no_name():
    with HeldMemory([Anywhere()] * 2) as held:
        environ = {"COARSE_STATE_MEMORY": held.told}
        kept = state_memory(Config(), environ, 1, 2)
        assert kept is not None
        assert held.versions() == (0, 0)
        assert held.layout_of_worker_0() is None
        commit(kept, 1)
        commit(kept, 2)
        assert held.versions() == (0, 2)
        first = state_memory(Config(), environ, 0, 2)
        assert first is not None
        commit(first, 1, b'{"a": 1}')
        assert held.layout_of_worker_0() == b'{"a": 1}'
        number = int(held.told.rpartition("/")[2].split(",")[0])
        assert os.readlink(f"/proc/self/fd/{number}").startswith("/memfd:coarse-state")


@pytest.mark.parametrize("stated", ["/tmp/x", "folder:", "folder:/"])
def test_a_setting_that_names_no_folder_is_refused(stated):
    with pytest.raises(ConfigError, match="memory must be folder:PATH"):
        FaultSettings(memory=stated)


def test_states_lie_where_the_worker_s_device_is(tmp_path):
    with HeldMemory([Folder(str(tmp_path)), NumaNode(0), Anywhere()]) as held:
        folder, _, numbers = held.told.rpartition("/")
        files = [f"{folder}/{number}" for number in numbers.split(",")]
        assert os.readlink(files[0]).startswith(str(tmp_path))
        assert not list(tmp_path.iterdir())  # without a name
        kept = StateMemory(opened_at([(files[2], files[3])]), 0)
        commit(kept, 1)
        data = kept.slot(1).read()
        assert data is not None
        lines = Path("/proc/self/numa_maps").read_text().splitlines()
        assert any("coarse-state" in line and "bind:0" in line for line in lines)
    with pytest.raises(ConfigError, match="no NUMA node 63"):
        HeldMemory([NumaNode(63)])
    with pytest.raises(ConfigError, match=r"in folder:/nowhere: No such file"):
        HeldMemory([Folder("/nowhere")])
