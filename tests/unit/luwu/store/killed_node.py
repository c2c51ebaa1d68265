"""python -m tests.unit.luwu.store.killed_node FOLDER OPERATION [resume]: a training that kills itself there."""

import os
import signal
import sys
from pathlib import Path

from coarse.luwu.store.folder import Disk
from coarse.luwu.store.optimizer import Rules
from tests.unit.luwu.store import node, test_crashes


class KillingDisk(Disk):
    """Ends the process at its Nth operation that changes something: before, after, or in the middle of it."""

    def __init__(self, kill_at: int) -> None:
        self.kill_at = kill_at
        self.num_done = 0

    def _count(self) -> bool:
        self.num_done += 1
        return self.num_done - 1 == self.kill_at

    def _die(self) -> None:
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    def write(self, descriptor, buffer, offset):
        if self._count():
            half = len(buffer) // 2 // 4096 * 4096
            if self.kill_at % 3 == 0 and half:
                super().write(descriptor, buffer[:half], offset)
            elif self.kill_at % 3 == 1:
                super().write(descriptor, buffer, offset)
            self._die()
        return super().write(descriptor, buffer, offset)

    def _around(self, name: str, *arguments: object) -> object:
        kills = self._count()
        if kills and self.kill_at % 2:
            self._die()
        result = getattr(super(), name)(*arguments)
        if kills:
            self._die()
        return result

    def open(self, path, *, is_direct=False):
        kills = self._count()
        descriptor = super().open(path, is_direct=is_direct)
        if kills:
            self._die()
        return descriptor

    def allocate(self, descriptor, nbytes):
        self._around("allocate", descriptor, nbytes)

    def sync(self, descriptor):
        self._around("sync", descriptor)

    def rename(self, source, target):
        self._around("rename", source, target)

    def sync_folder(self, path):
        self._around("sync_folder", path)


class SayingNode(node.Node):
    """Says which steps are committed."""

    def write_record(self, step):
        done = super().write_record(step)
        print("committed", step, flush=True)
        return done


def main() -> None:
    folder, kill_at = Path(sys.argv[1]), int(sys.argv[2])
    node.FOLDERS = (folder / "a", folder / "b")
    if sys.argv[3:] == ["resume"]:
        step = test_crashes.require_step(Disk(), Rules(), {}, seed=kill_at)
        print("found", step)
        return
    training = test_crashes.tiny_training()
    assert SayingNode(training.model, Rules(), training.scripts(), KillingDisk(kill_at), seed=kill_at).run()


if __name__ == "__main__":
    main()
