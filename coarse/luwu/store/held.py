"""Files in memory that the launcher holds, so that states of an optimizer node outlive its process."""

import errno
import os
from pathlib import Path

from coarse.luwu.store.folder import MemoryDisk
from coarse.protocol import override
from coarse.transport.handed import ask_for_file, ask_to_move


class HeldDisk(MemoryDisk):
    """MemoryDisk whose files a process that is started again finds as they were."""

    def __init__(self, address: str) -> None:
        """Start with the launcher's `address`, from which files are got."""
        super().__init__()
        self._address = address

    @override
    def open(self, path: Path, *, is_direct: bool = False) -> int:
        if is_direct:
            raise OSError(errno.EINVAL, "memory is not direct")
        found = ask_for_file(self._address, _name(path), makes=True)
        assert found is not None
        return found

    @override
    def rename(self, source: Path, target: Path) -> None:
        ask_to_move(self._address, _name(source), _name(target))

    @override
    def content(self, path: Path) -> bytes | None:
        descriptor = ask_for_file(self._address, _name(path), makes=False)
        if descriptor is None:
            return None
        try:
            return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        finally:
            os.close(descriptor)


def _name(path: Path) -> str:
    """Return a file's name for the launcher, which begins with the host's."""
    return f"{os.uname().nodename}{path}"
