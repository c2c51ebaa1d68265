"""The name and version under which this package is installed, for its metadata and for messages. Pure."""

NAME = "coarse-cxl"
"""The name on a package index, where `coarse` is another project; what is imported is `coarse`."""
VERSION = "0.1.0"


def how_to_install(extra: str) -> str:
    """Return the command that brings the packages of an extra."""
    return f"pip install '{NAME}[{extra}]'"
