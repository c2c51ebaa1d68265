"""Name and version under which this package is installed, for its metadata and for messages."""

NAME = "coarse-cxl"
"""Name on a package index, where `coarse` is another project; the package to import is `coarse`."""
VERSION = "0.1.0"


def how_to_install(extra: str) -> str:
    """Return the command that installs the packages of an extra."""
    return f"pip install '{NAME}[{extra}]'"
