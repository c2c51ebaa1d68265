"""What all commands do with wrong input: one message and exit status 2."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from coarse.errors import CoarseError


@contextmanager
def wrong_input_ends_with_2() -> Iterator[None]:
    """Turn an error that a user can mend into one message and exit status 2."""
    try:
        yield
    except CoarseError as error:
        print(f"coarse: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"coarse: {where}{error.strerror or error}; check the path, and what may be written", file=sys.stderr)
        raise typer.Exit(2) from error
