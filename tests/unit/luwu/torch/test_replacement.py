"""Files that are replaced together: after a crash at any operation they are the old ones, or the new ones."""

import itertools
from pathlib import Path

import pytest

from coarse.luwu.store.folder import Disk
from coarse.luwu.torch.replacement import Replacement

PATTERN = r"((model|states)(-\d)?\.bin|index\.json)(-under way)?"
OLD = {"model-1.bin": "old", "model-2.bin": "old", "index.json": "old", "states.bin": "old"}
NEW = {"model-1.bin": "new", "index.json": "new", "model-3.bin": "new"}
OTHERS = {"config.json": "of somebody else", "modelling.bin": "too"}


class Crash(BaseException):
    """The end of the process."""


class CrashingDisk(Disk):
    """Ends the process before the operation of a number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __getattribute__(self, name: str) -> object:
        found = object.__getattribute__(self, name)
        if callable(found) and not name.startswith("_"):
            self._number -= 1
            if self._number < 0:
                raise Crash
        return found


def content(folder: Path) -> dict[str, str]:
    """Return the files that count, once what was interrupted is finished."""
    Replacement(folder, PATTERN)
    return {path.name: path.read_text() for path in folder.iterdir() if not path.name.endswith(".new")}


def replace(folder: Path, disk: Disk) -> None:
    files = Replacement(folder, PATTERN, disk)
    for name, text in NEW.items():
        files.path(f"{name}-under way").write_text(text)
        files.rename(f"{name}-under way", name)
    files.commit()


def test_after_a_crash_at_any_operation_the_old_files_are_whole_or_the_new_ones(tmp_path: Path) -> None:
    outcomes = []
    for number in itertools.count():
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, text in {**OLD, **OTHERS}.items():
            (folder / name).write_text(text)
        try:
            replace(folder, CrashingDisk(number))
        except Crash:
            outcomes.append(content(folder))
            replace(folder, Disk())
            assert sorted(path.name for path in folder.iterdir()) == sorted({**NEW, **OTHERS})
            continue
        outcomes.append(content(folder))
        break
    changes = [before != after for before, after in itertools.pairwise(outcomes)]
    assert sum(changes) == 1
    assert outcomes[0] == {**OLD, **OTHERS}
    assert outcomes[-1] == {**NEW, **OTHERS}
    assert len(outcomes) > 20


@pytest.mark.parametrize("num_syncs", [0, 3])
def test_nothing_is_renamed_before_all_is_synced(tmp_path: Path, num_syncs: int) -> None:
    done: list[str] = []

    class Noting(Disk):
        def sync(self, descriptor: int) -> None:
            done.append("sync")

        def sync_folder(self, path: Path) -> None:
            done.append("sync folder")

        def rename(self, source: Path, target: Path) -> None:
            done.append(target.name)
            super().rename(source, target)

    files = Replacement(tmp_path, PATTERN, Noting())
    for number in range(num_syncs):
        files.path(f"model-{number}.bin").write_text("new")
    files.commit()
    names = [f"model-{number}.bin" for number in range(num_syncs)]
    listed = ["sync folder", "saved.json", "sync folder"]
    assert done == ["sync"] * (num_syncs + 1) + listed + names + ["sync folder"] * 2
