# Writes files; reads the process number.
"""Files that are whole or absent for every reader, even if their writer ends in the middle."""

import os
from pathlib import Path


def write_whole(path: Path, data: str | bytes) -> Path:
    """Write a file in an existing folder, text as UTF-8, and return it.

    A neighbouring file is written first and then takes its place.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    unfinished.write_bytes(data.encode() if isinstance(data, str) else data)
    return unfinished.replace(path)
