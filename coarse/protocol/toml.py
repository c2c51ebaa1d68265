# Reads files.
"""TOML files whose errors name file and line, and whose unknown keys are refused."""

import difflib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import tomllib
except ModuleNotFoundError as error:  # new in 3.11, and the first that is missing before it
    raise ImportError(f"coarse needs Python 3.11 or newer, and this is {sys.version.split()[0]}") from error

from coarse.errors import ConfigError

_MOST_CHARACTERS = 1 << 24
"""Most characters of a TOML file: a device such as /dev/full has no end."""
KeyPath = tuple[str | int, ...]
Where = Callable[[KeyPath], str]


@dataclass(frozen=True)
class TomlFile:
    """TOML file that knows the line of each key."""

    path: Path
    text: str
    values: dict[str, Any]

    @classmethod
    def read(cls, path: str | Path) -> "TomlFile":
        """Read a file; ConfigError, with the line, if it is absent or not TOML."""
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read(_MOST_CHARACTERS + 1)
            if len(text) > _MOST_CHARACTERS:
                raise ConfigError(f"{path}: longer than {_MOST_CHARACTERS} characters; is it the file that you mean?")
            return cls(Path(path), text, tomllib.loads(text))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror}); check the path") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: not UTF-8 text ({error.reason}); save it so") from None
        except tomllib.TOMLDecodeError as error:
            line = re.search(r"at line (\d+)", str(error))
            number = line[1] if line else len(text.splitlines())  # "at end of document"
            raise ConfigError(f"{path}:{number}: not TOML: {error}") from None

    def where(self, path: KeyPath) -> str:
        """Return `file:line` of the key, or of the innermost table around it that has a line."""
        best_length, best_line = 0, 1
        table: KeyPath = ()
        num_seen: dict[KeyPath, int] = {}
        for number, line in enumerate(self.text.splitlines(), start=1):
            found = re.match(r"\s*(\[\[?)?\s*([\w\"'.\- ]+?)\s*(\]|=)", line)
            if found is None:
                continue
            parts = re.findall(r'"[^"]*"|\'[^\']*\'|[^.]+', found[2])  # a dot within quotes is none
            key: KeyPath = tuple(part.strip(" \"'") for part in parts)
            if found[1] == "[[":
                num_seen[key] = num_seen.get(key, -1) + 1
                key = (*key, num_seen[key])
            if found[1]:
                table = key
            else:
                key = (*table, *key)
            if len(key) > best_length and path[: len(key)] == key:
                best_length, best_line = len(key), number
        return f"{self.path}:{best_line}"

    @contextmanager
    def located(self, path: KeyPath) -> Iterator[None]:
        """Put file and line before a ConfigError about the table `path` that is raised inside."""
        try:
            yield
        except ConfigError as error:
            where = self.where((*path, error.key or ""))
            raise ConfigError(f"{where}: {error}", key=error.key) from None


def refuse_unknown_keys(
    given: Iterable[object], known: Iterable[str], path: KeyPath, where: Where
) -> None:
    """Refuse the first key that is not known; the ConfigError names the nearest ones that are."""
    names = list(known)
    for key in given:
        if key in names:
            continue
        near = difflib.get_close_matches(str(key), names, n=3)
        remedy = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
        at_key = (*path, str(key))
        dotted = ".".join(str(part) for part in at_key)
        raise ConfigError(f"{where(at_key)}: unknown key {dotted!r}; {remedy}", key=str(key))
