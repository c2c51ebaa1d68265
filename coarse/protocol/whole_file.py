# Writes files; reads the process number.
"""Files that are whole or absent, for every reader and any end of their writer."""

import os
from pathlib import Path


def write_whole(path: Path, data: str | bytes) -> Path:
    """Write a file in a folder that is there, text as UTF-8, by way of a neighbour that takes its place; return it."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    unfinished.write_bytes(data.encode() if isinstance(data, str) else data)
    return unfinished.replace(path)
