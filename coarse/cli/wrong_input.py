"""Treatment of wrong input by all commands: one message and exit status 2."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from coarse.errors import CoarseError
from coarse.protocol.distribution import how_to_install

_OF_REPORT_EXTRA = ("google", "matplotlib", "rich")


@contextmanager
def missing_packages_end_with_2() -> Iterator[None]:
    """Turn the lack of a package of the report extra into one message and exit status 2."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OF_REPORT_EXTRA:
            raise
        print(f"coarse: this needs {error.name}, which is not installed: {how_to_install('report')}", file=sys.stderr)
        raise typer.Exit(2) from error


@contextmanager
def wrong_input_ends_with_2() -> Iterator[None]:
    """Turn an error that a user can mend into one message and exit status 2; a closed reader is no error."""
    try:
        with missing_packages_end_with_2():
            yield
    except CoarseError as error:
        print(f"coarse: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"coarse: {where}{error.strerror or error}; check the path, and what may be written", file=sys.stderr)
        raise typer.Exit(2) from error
