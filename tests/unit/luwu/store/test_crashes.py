"""A node that ends at any file operation, or loses power there, goes on from exactly one step."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from coarse.errors import StorageError
from coarse.luwu.store.commit import Commit
from coarse.luwu.store.folder import PagedFolder
from coarse.luwu.store.layout import PagedModel, PagedTensor, PagedUnit
from coarse.luwu.store.optimizer import Rules
from tests.unit.luwu.store.memory_disk import MemoryDisk, PowerLost
from tests.unit.luwu.store.node import FOLDERS, Node, Training

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[3]
RULES = {
    "at the step": (Rules(), {}),
    "every second": (Rules(commit_every=2), {}),
    "in backward": (Rules(in_backward=True), {"in_backward": True}),
}


def tiny_training(first_step: int = 0, **options: object) -> Training:
    model = PagedModel(
        units=(
            PagedUnit("one", (PagedTensor("one.w", (2000,)), PagedTensor("one.b", (7,)))),
            PagedUnit("two", (PagedTensor("two.w", (1100,)),)),
        ),
        chunk_elements=1024,
    )
    return Training(model, num_workers=2, num_steps=4, first_step=first_step, **options)


def require_step(disk: MemoryDisk, rules: Rules, options: dict[str, object], seed: int) -> int | None:
    """The committed step that a disk goes on from, once it is seen to be whole and to lead to the right end."""
    probe = Node(tiny_training().model, rules, [], disk, seed=seed)
    for folder in probe.folders:
        folder.close()
    if probe.resumed is None:
        return None
    step = probe.resumed.step
    assert [int(state) for state in probe.resumed.workers] == [step, step]
    training = tiny_training(first_step=step, **options)
    node = Node(training.model, rules, training.scripts(), disk, seed=seed)
    for unit, version in node.optimizer.versions().items():
        for found, right in zip(node.arrays(unit, version), training.reference(step)[unit], strict=True):
            assert found.tobytes() == right.tobytes()
    assert node.run()
    for unit, version in node.optimizer.versions().items():
        for found, right in zip(node.arrays(unit, version), training.reference()[unit], strict=True):
            assert found.tobytes() == right.tobytes()
    return step


def stopped(disk: MemoryDisk, rules: Rules, options: dict[str, object], seed: int) -> tuple[int | None, bool]:
    """The last step whose commit returned, of a training that loses power; whether it did."""
    training = tiny_training(**options)
    node = None
    try:
        node = Node(training.model, rules, training.scripts(), disk, seed=seed)
        assert node.run()
    except PowerLost:
        return (node.commits[-1].step if node is not None and node.commits else None), True
    return node.commits[-1].step, False


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("end", ["power", "kill"])
def test_a_node_that_ends_at_any_operation_goes_on_from_exactly_one_step(name: str, end: str) -> None:
    rules, options = RULES[name]
    stop_at, lost, steps = 0, True, set()
    while lost:
        disk = MemoryDisk(stop_at)
        last, lost = stopped(disk, rules, options, seed=stop_at)
        found = disk.after_power_loss(stop_at) if end == "power" else disk.after_kill()
        step = require_step(found, rules, options, seed=stop_at)
        following = 0 if last is None else last + rules.commit_every
        assert step in (last, following), f"operation {stop_at}"
        steps.add(step)
        stop_at += 3
    assert steps == {None, *range(0, 5, rules.commit_every)}
    assert stop_at > 60


def written_in_place(known):
    return 0 if known.now is None else known.now.slot


class UnsyncedFolder(PagedFolder):
    """The slots are not on the disk when the record is."""

    def sync(self) -> None:
        pass


class OneRecordFolder(PagedFolder):
    """There is one copy of the record, which a crash may tear."""

    def write_commit(self, commit: Commit) -> None:
        super().write_commit(replace(commit, sequence=2 * commit.sequence))


@pytest.mark.parametrize(
    ("place", "planted"),
    [
        ("coarse.luwu.store.optimizer._other_slot", written_in_place),
        ("tests.unit.luwu.store.node.PagedFolder", UnsyncedFolder),
        ("tests.unit.luwu.store.node.PagedFolder", OneRecordFolder),
    ],
    ids=["the committed slot is written to", "slots are not synced", "one copy of the record"],
)
def test_a_planted_hole_is_found(place: str, planted: object, monkeypatch: pytest.MonkeyPatch) -> None:
    for stop_at in range(20, 70):
        monkeypatch.setattr(place, planted)
        disk = MemoryDisk(stop_at)
        last, _ = stopped(disk, *RULES["at the step"], seed=stop_at)
        monkeypatch.undo()
        try:
            step = require_step(disk.after_power_loss(stop_at), *RULES["at the step"], seed=stop_at)
        except (AssertionError, StorageError, KeyError, AttributeError):
            return
        if step not in (last, 0 if last is None else last + 1):
            return
    raise AssertionError("no loss of power showed it")


@pytest.mark.test_all
@pytest.mark.parametrize("name", RULES)
def test_power_losses_of_many_kinds_at_every_operation(name: str) -> None:
    rules, options = RULES[name]
    stop_at, lost = 0, True
    while lost:
        disk = MemoryDisk(stop_at)
        last, lost = stopped(disk, rules, options, seed=stop_at)
        for kind in range(5):
            step = require_step(disk.after_power_loss(1000 * kind + stop_at), rules, options, seed=kind)
            assert step in (last, 0 if last is None else last + rules.commit_every), (stop_at, kind)
        stop_at += 1


def killed_node(folder: Path, stop_at: int, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.unit.luwu.store.killed_node", str(folder), str(stop_at), *more]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)


REST = [pytest.param(first, marks=pytest.mark.test_all) for first in range(1, 12)]


@pytest.mark.parametrize("first", [0, *REST])
def test_a_process_that_is_killed_at_a_file_operation_leaves_one_step(first: int, tmp_path: Path) -> None:
    """Kill -9 on real files: the operation has happened, half of it, or nothing of it."""
    for stop_at in range(first, 200, 12):
        folder = tmp_path / str(stop_at)
        done = killed_node(folder, stop_at)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        said = [int(line.split()[1]) for line in done.stdout.splitlines()]
        again = killed_node(folder, stop_at, "resume")
        assert again.returncode == 0, again.stderr
        step = again.stdout.split()[-1]
        last = said[-1] if said else None
        assert step in (str(last), str(0 if last is None else last + 1)), (stop_at, said, step)
        if not done.returncode:
            assert step == "4"
            break
    else:
        raise AssertionError("the training has more operations than were tried")


def test_folders_are_not_shared_between_processes() -> None:
    disk = MemoryDisk()
    Node(tiny_training().model, Rules(), [], disk)
    with pytest.raises(OSError, match=rf"{FOLDERS[0]} is in use by process \d+ of .*; wait until it has ended"):
        Node(tiny_training().model, Rules(), [], disk)
