"""Memory that may still be taken: the kernel's, and that of control groups of any level and both versions."""

from pathlib import Path

import pytest

from coarse.errors import CapacityError
from coarse.storage import region, room
from coarse.storage.room import V1, V2, GroupFiles, GroupLimit, available_bytes, group_limits, total_bytes


def make_group(folder: Path, files: GroupFiles, limit: str, usage: int, cached: int = 0) -> None:
    """Write what the kernel tells of a group, half of whose cached files are active."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / files.limit).write_text(f"{limit}\n")
    (folder / files.usage).write_text(f"{usage}\n")
    active = cached // 2
    cached_files = f"{files.prefix}active_file {active}\n{files.prefix}inactive_file {cached - active}\n"
    (folder / "memory.stat").write_text(f"anon 7\n{cached_files}")


def limits_of(tmp_path: Path, own_groups: str) -> list[GroupLimit]:
    (tmp_path / "own").write_text(own_groups)
    return group_limits(tmp_path / "cgroup", tmp_path / "own")


def test_there_is_never_more_left_than_there_is():
    assert 0 < available_bytes() <= total_bytes()


@pytest.mark.parametrize(
    ("limit", "usage", "cached", "left"), [("100", 30, 0, 70), ("100", 130, 0, 0), ("100", 95, 60, 65)]
)
@pytest.mark.parametrize("files", [V1, V2])
def test_a_group_leaves_its_limit_less_what_is_used_and_no_cache(tmp_path, files, limit, usage, cached, left):
    root = tmp_path / "cgroup" / ("memory" if files is V1 else "")
    make_group(root / "job", files, limit, usage, cached)
    own = "4:cpu,cpuacct:/other\n3:memory:/job\n" if files is V1 else "0::/job\n"
    assert limits_of(tmp_path, own) == [GroupLimit("/job", 100, left)]


def test_a_group_without_a_limit_is_none(tmp_path):
    make_group(tmp_path / "cgroup" / "job", V2, "max", 5)
    assert limits_of(tmp_path, "0::/job\n") == []


def test_the_group_of_any_level_may_bind(tmp_path):
    """Slurm limits the groups of a job and of a step, while a task is in a group without a limit."""
    step = tmp_path / "cgroup" / "system.slice" / "job_7" / "step_0"
    make_group(step / "user" / "task_0", V2, "max", 10)
    make_group(step / "user", V2, "500", 10)
    make_group(step.parent, V2, "300", 250)
    found = limits_of(tmp_path, "0::/system.slice/job_7/step_0/user/task_0\n")
    assert found == [
        GroupLimit("/system.slice/job_7/step_0/user", 500, 490), GroupLimit("/system.slice/job_7", 300, 50)
    ]  # fmt: skip


def test_a_container_is_limited_by_what_it_sees_as_the_root(tmp_path):
    make_group(tmp_path / "cgroup", V2, "300", 100)
    assert limits_of(tmp_path, "0::/../../elsewhere\n") == [GroupLimit("/", 300, 200)]


def test_a_machine_without_groups_has_no_limit(tmp_path):
    assert group_limits(tmp_path / "cgroup", tmp_path / "own") == []


def test_the_group_that_binds_is_named_where_devices_do_not_fit(monkeypatch):
    monkeypatch.setattr(room, "group_limits", lambda: [GroupLimit("/job_7", 4096, 1000), GroupLimit("/", 8192, 2000)])
    with pytest.raises(CapacityError, match=r"has 1000 bytes.*group /job_7 is limited to 4096 bytes; raise.*--mem"):
        region.check_capacity(501, 2)
