"""Tables of options for pages, from what the fields of their dataclasses say.

    python -m tests.support.option_tables       writes those of docs/configuration.md anew
"""

import re
from collections.abc import Iterator
from dataclasses import MISSING, is_dataclass
from pathlib import Path

from coarse.protocol.config import (
    Config,
    EmulateSettings,
    FaultSettings,
    FixedRouting,
    Launch,
    MeasuredRouting,
    PoolSettings,
)
from coarse.protocol.fields import Option, options_of
from coarse.protocol.units import KIB, MIB

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
SECTIONS = (Config, MeasuredRouting, FixedRouting, Launch, PoolSettings, FaultSettings, EmulateSettings)
_HEAD = ("| key | default | meaning |", "|---|---|---|")


def table(kind: type) -> str:
    """Return the lines of a dataclass's table: key, default, meaning."""
    return "\n".join((*_HEAD, *map(_row, options_of(kind).values())))


def with_tables(page: str) -> str:
    """Return the page with the table of each section in place of the one that begins with the same key."""
    for kind in SECTIONS:
        first = next(iter(options_of(kind)))
        head = re.escape("\n".join(_HEAD))
        page, count = re.subn(
            rf"^{head}\n\| `{first}` \|.*?(?=\n\n)", lambda _, kind=kind: table(kind), page, flags=re.S | re.M
        )
        assert count == 1, f"{kind.__name__}: {count} tables that begin with {first}"
    return page


def _row(option: Option) -> str:
    assert option.says is not None, f"{option.name} says nothing"
    return f"| `{option.name}` | {_default(option)} | {option.says.help} |"


def _default(option: Option) -> str:
    value = option.default
    if value is MISSING:
        return "must be given"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int):
        return next(_sizes(value), f"`{value}`")
    if isinstance(value, str):
        return f'`"{value}"`'
    return f"`{type(value).__name__}()`" if is_dataclass(value) else f"`{value}`"


def _sizes(value: int) -> Iterator[str]:
    for unit, nbytes in (("MiB", MIB), ("KiB", KIB)):
        if value and value % nbytes == 0:
            yield f"{value // nbytes} {unit}"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
