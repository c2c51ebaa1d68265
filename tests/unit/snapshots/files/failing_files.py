"""A file system whose Nth operation fails."""

import errno
from pathlib import Path

from coarse.snapshots.files.filesystem import FileSystem

OPERATIONS = frozenset(name for name in vars(FileSystem) if not name.startswith("_"))


class FailingFileSystem(FileSystem):
    """Fails the operation number `fail_at` (from 0), and all later ones where `for_good`.

    `after_effect`: what fails has happened nevertheless; `torn`: half of a file is written.
    """

    def __init__(self, fail_at=None, *, for_good=False, after_effect=False, torn=False):
        self.fail_at, self.for_good, self.after_effect, self.torn = (
            fail_at,
            for_good,
            after_effect,
            torn,
        )
        self.log: list[tuple[str, str]] = []

    def sync(self, path):
        """Real disks take their time; the log tells what would have been synced when."""
        path.stat()

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name not in OPERATIONS:
            return found

        def operation(path: Path, *rest):
            number = len(self.log)
            self.log.append((name, path.name))
            fails = self.fail_at is not None and (
                number == self.fail_at or (self.for_good and number > self.fail_at)
            )
            if not fails:
                return found(path, *rest)
            if self.after_effect and number == self.fail_at:
                found(path, *rest)
            if self.torn and number == self.fail_at and name.startswith("write"):
                found(path, *rest)
                content = path.read_bytes()
                path.write_bytes(content[: len(content) // 2])
            raise OSError(errno.EIO, "Input/output error", str(path))

        return operation
