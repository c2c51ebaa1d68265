"""Files of a folder that are replaced together: after a crash all old ones are whole, or all new ones.

[Note: replacing] New files are written under names that end with `.new`, and synced. Then a list of them is put into
the folder, by one rename: from there on the new files count. A process that finds the list goes on with its work: it
gives the new files their names, and removes other old files, and new ones that were never listed. At last the list
goes.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from coarse.luwu.store.folder import Disk

_NEW, _LIST = ".new", "saved.json"


class Replacement:
    """Replacement of the files of a folder whose names match a pattern; others stay as they are."""

    def __init__(self, folder: Path, pattern: str, disk: Disk | None = None) -> None:
        """Finish a replacement that a crash has interrupted, if there is one."""
        self._folder = folder
        self._pattern = re.compile(pattern)
        self._disk = disk or Disk()
        self._names: list[str] = []
        self._disk.make_folder(folder)
        self.finish()

    def path(self, name: str) -> Path:
        """Return the path at which the new file of a name is to be written."""
        self._names.append(name)
        return self._folder / f"{name}{_NEW}"

    def rename(self, before: str, name: str) -> None:
        """Give a new file another name, before `commit`."""
        self._disk.rename(self._folder / f"{before}{_NEW}", self._folder / f"{name}{_NEW}")
        self._names[self._names.index(before)] = name

    def commit(self) -> None:
        """Have the new files take the place of the old ones; return once that is on the disk."""
        for name in self._names:
            self._sync(self._folder / f"{name}{_NEW}")
        listed = self._folder / f"{_LIST}{_NEW}"
        listed.write_bytes(json.dumps(self._names).encode())
        self._sync(listed)
        self._disk.sync_folder(self._folder)
        self._disk.rename(listed, self._folder / _LIST)
        self._disk.sync_folder(self._folder)
        self.finish()

    def finish(self) -> None:
        """Carry out the list, if there is one."""
        raw = self._disk.content(self._folder / _LIST)
        if raw is None:
            return
        names: list[str] = json.loads(raw)
        for name in names:
            if (new := self._folder / f"{name}{_NEW}").exists():  # else it has its name already
                self._disk.rename(new, self._folder / name)
        for path in self._folder.iterdir():
            if self._pattern.fullmatch(path.name.removesuffix(_NEW)) and path.name not in names:
                self._disk.remove(path)
        self._disk.sync_folder(self._folder)
        self._disk.remove(self._folder / _LIST)
        self._disk.sync_folder(self._folder)

    def _sync(self, path: Path) -> None:
        descriptor = self._disk.open(path)
        try:
            self._disk.sync(descriptor)
        finally:
            self._disk.close(descriptor)
