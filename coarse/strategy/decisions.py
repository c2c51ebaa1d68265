# Reads and writes files.
"""File of a run's measurements and decisions, which fixes them for the next run.

Equal facts and rounds give equal bits.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coarse.errors import ConfigError
from coarse.protocol.plan import Cluster, Facts
from coarse.strategy.rounds import By, Round

_FORMAT = 1


class Decisions:
    """Facts of all workers, and the round of each optimizer; those of a file where there is one."""

    def __init__(self, path: Path | None, cluster: Cluster, text: str = "") -> None:
        """Read the decisions of a file.

        Args:
            path: The file; None where there is none.
            cluster: Workers and devices, which must be those of the file.
            text: Text of the file; "" where it does not exist yet and is to be written.

        Raises:
            ConfigError: The text holds no decisions, or those of another cluster.
        """
        self._path = path
        self._cluster = _plain(cluster)
        self.is_fixed = bool(text)
        self.facts: tuple[Facts, ...] | None = None
        self.rounds: dict[str, Round] = {}
        if text:
            self._take(text)

    def round_of(self, prefix: str, num_buckets: int) -> Round | None:
        """Return the round that the file has for an optimizer's prefix; None where nothing is fixed.

        Raises:
            ConfigError: the file has none for it, or one of another number of buckets.
        """
        if not self.is_fixed:
            return None
        found = self.rounds.get(prefix)
        if found is None or len(found.by) != num_buckets:
            came = "none" if found is None else f"one of {len(found.by)}"
            raise ConfigError(
                f"{self._path}: a round of {num_buckets} buckets was wanted for {prefix!r}, and it has {came}; it is "
                "of another model or strategy, remove it to decide anew",
                key="decision",
            )
        return found

    def note(self, prefix: str, decided: Round) -> None:
        """Record the round with which an optimizer goes on, unless the file fixes it."""
        if not self.is_fixed:
            self.rounds[prefix] = decided

    def write(self, facts: Sequence[Facts]) -> None:
        """Write the file, whole or not at all, unless it was there; ConfigError where that cannot be."""
        if self._path is None or self.is_fixed:
            return
        document = {
            "format": _FORMAT,
            "cluster": self._cluster,
            "facts": [list(row) for row in facts],
            "rounds": self.as_plain(),
        }
        part = self._path.with_name(f"{self._path.name}.part")
        try:
            part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            os.replace(part, self._path)
        except OSError as error:
            raise ConfigError(
                f"decision = '{self._path}' cannot be written ({error}); check its folder, and run again",
                key="decision",
            ) from None

    def as_plain(self) -> dict[str, dict[str, Any]]:
        """Return each optimizer's round in plain values for JSON, by its prefix."""
        return {
            prefix: {"by": [by.value for by in decided.by], "hold_back": decided.hold_back}
            for prefix, decided in self.rounds.items()
        }

    def _take(self, text: str) -> None:
        try:
            document = json.loads(text)
            if document["format"] != _FORMAT:
                raise ValueError(f"format {document['format']}, wanted {_FORMAT}")
            facts = tuple(tuple(map(_whole, row)) for row in document["facts"])
            rounds = {
                str(prefix): Round(by=tuple(map(By, entry["by"])), hold_back=bool(entry["hold_back"]))
                for prefix, entry in document["rounds"].items()
            }
            cluster = document["cluster"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{self._path}: no decisions of a run ({type(error).__name__}: {error}); remove it to decide anew",
                key="decision",
            ) from None
        if cluster != self._cluster or len(facts) != len(self._cluster["worker_nodes"]):
            raise ConfigError(
                f"{self._path}: of a run on {cluster}, and this one is on {self._cluster}; remove it to decide anew",
                key="decision",
            )
        self.facts, self.rounds = facts, rounds


def _plain(cluster: Cluster) -> Mapping[str, list[int]]:
    return {key: list(value) for key, value in asdict(cluster).items()}


def _whole(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is no whole number")
    return value


def text_of(path: str | None) -> str:
    """Return the text of a file of decisions; "" where it is not there.

    Raises:
        ConfigError: it cannot be read, or its folder is not there, so that it could not be written.
    """
    if path is None:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        if not Path(path).parent.is_dir():
            raise ConfigError(f"decision = {path!r}: its folder is not there; make it", key="decision") from None
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"decision = {path!r} cannot be read ({error}); check the path", key="decision") from None
