"""Work of the launcher in a thread of its own, from the beginning of a `with` to its end."""

import threading
from typing import Self


class InThread:
    """Thread that runs `_run` of a derived class within a `with`, which returns once `_stopped` is set."""

    def __init__(self, name: str) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        raise NotImplementedError
