"""Rows of a sweep, and the folder that keeps them as they come, so that a stopped sweep can continue."""

import csv
import fcntl
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from coarse.errors import ConfigError
from coarse.protocol.whole_file import write_whole

ROWS_FILE, QUESTION_FILE, PARQUET_FILE, PICTURE_FILE = "rows.csv", "question.json", "rows.parquet", "crossover.png"
KIND = "simulated"
NUMBERS = ("iteration_s", "samples_per_s", "exposed_s", "compute_s")
SAMPLES = "samples_s"
_LOCK_FILE = ".lock"

RowKey = tuple[str, ...]
"""Varied values and the mode."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Mode at one point: its iteration, seconds as means over workers, or the reason why there is none."""

    values: tuple[str, ...]
    """Values of the varied keys."""
    mode: str
    iteration_s: float | None = None
    samples_per_s: float | None = None
    exposed_s: float | None = None
    compute_s: float | None = None
    samples_s: tuple[float, ...] = ()
    """Seconds of an iteration under alternative inputs, equal for all rows; empty if not simulated."""
    reason: str = ""

    @property
    def key(self) -> RowKey:
        """Key that no two rows of a sweep share."""
        return (*self.values, self.mode)

    def cells(self) -> list[str]:
        """Return the cells that `columns` names; numbers to the last bit."""
        numbers = ("" if number is None else repr(number) for number in (getattr(self, name) for name in NUMBERS))
        return [*self.values, self.mode, *numbers, " ".join(map(repr, self.samples_s)), KIND, self.reason]

    @classmethod
    def of_cells(cls, cells: Sequence[str], num_keys: int) -> "Row | None":
        """Return the row that `cells` made, or None if a crash has left something else."""
        if len(cells) != num_keys + len(NUMBERS) + 4 or cells[-2] != KIND:
            return None
        numbers, reason = cells[num_keys + 1 : -3], cells[-1]
        try:
            samples_s = tuple(map(float, cells[-3].split()))
            read = {name: float(text) if text else None for name, text in zip(NUMBERS, numbers, strict=True)}
        except ValueError:
            return None
        known = [number for number in read.values() if number is not None]
        if not all(map(math.isfinite, (*known, *samples_s))) or len(known) != (0 if reason else len(NUMBERS)):
            return None
        return cls(values=tuple(cells[:num_keys]), mode=cells[num_keys], samples_s=samples_s, reason=reason, **read)


def columns(keys: Iterable[str]) -> list[str]:
    """Return the heads of the rows' file; a varied key gets a prefix if it has the name of a result."""
    varied = (f"asked {key}" if key in (*NUMBERS, SAMPLES) else key for key in keys)
    return [*varied, "mode", *NUMBERS, SAMPLES, "kind", "reason"]


class Folder:
    """Folder of a sweep: one question, and its computed rows; one process at a time writes it."""

    def __init__(self, path: Path, record: Mapping[str, Any], wanted: Iterable[RowKey], *, restart: bool) -> None:
        self.path = path
        self.rows: dict[RowKey, Row] = {}
        """Rows computed so far, in any order."""
        self._record = record
        self._keys: list[str] = list(record["varied"])
        self._wanted = dict.fromkeys(wanted)
        self._restart = restart
        self._opened = ExitStack()

    def __enter__(self) -> "Folder":
        """Lock the folder and read the rows of this question computed so far.

        Raises:
            ConfigError: the folder has rows of another question, or another process writes them.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as opened:
            lock = opened.enter_context(open(self.path / _LOCK_FILE, "w", encoding="utf-8"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"--out {self.path}: another sweep writes there; wait for it, or choose another folder", key="out"
                ) from None
            if self._restart:
                for name in (ROWS_FILE, QUESTION_FILE, PARQUET_FILE, PICTURE_FILE):
                    (self.path / name).unlink(missing_ok=True)
            self._take_question()
            self._take_rows()
            self._file = opened.enter_context(open(self.path / ROWS_FILE, "a", encoding="utf-8"))
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def add(self, row: Row) -> None:
        """Keep a row; it is in the file when this returns."""
        self.rows[row.key] = row
        self._file.write(_line(row.cells()))
        self._file.flush()

    def in_order(self) -> list[Row]:
        """Return the rows there are, in the order of the question."""
        return [self.rows[key] for key in self._wanted if key in self.rows]

    def missing(self) -> set[RowKey]:
        """Return the keys of the rows still to compute."""
        return set(self._wanted) - set(self.rows)

    def finish(self) -> Path:
        """Write the file anew with all rows in order; no row can be added afterwards."""
        self._file.close()
        return self._write_rows()

    def _take_question(self) -> None:
        path, remedy = self.path / QUESTION_FILE, "choose another --out, or --restart to compute anew here"
        if not path.exists():
            if (self.path / ROWS_FILE).exists():
                raise ConfigError(f"{self.path / ROWS_FILE} is of no known question; {remedy}", key="out")
            write_whole(path, json.dumps(self._record, indent=1) + "\n")
            return
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
            names = [key for key in {**before, **self._record} if before.get(key) != self._record.get(key)]
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path}: not the record of a sweep ({error}); {remedy}", key="out") from None
        if names:
            pairs = ((key, _short(before.get(key)), _short(self._record.get(key))) for key in names)
            differing = "; ".join(f"{key} was {was}, is {now}" for key, was, now in pairs)
            raise ConfigError(f"--out {self.path} has the rows of another question ({differing}); {remedy}", key="out")

    def _take_rows(self) -> None:
        """Read the whole lines; one that was being written when the process ended is dropped."""
        path = self.path / ROWS_FILE
        text = path.read_bytes().decode(errors="replace") if path.exists() else ""
        for line in text.split("\n")[1:-1]:
            row = Row.of_cells(_cells(line), len(self._keys))
            if row is not None and row.key in self._wanted:
                self.rows.setdefault(row.key, row)
        self._write_rows()

    def _write_rows(self) -> Path:
        lines = (_line(cells) for cells in (columns(self._keys), *(row.cells() for row in self.in_order())))
        return write_whole(self.path / ROWS_FILE, "".join(lines))


def require_parquet() -> None:
    """Raise ConfigError if Parquet cannot be written."""
    try:
        import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--parquet needs pyarrow ({error.name} is not installed): pip install pyarrow, or leave it out: "
            f"{ROWS_FILE} has the same rows",
            key="parquet",
        ) from None


def write_parquet(folder: Path, keys: Sequence[str], rows: Sequence[Row]) -> Path:
    """Write the rows as a Parquet file; a varied key has numbers if all its values are."""
    pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    varied = [_numbers([row.values[number] for row in rows]) for number in range(len(keys))]
    found = [[getattr(row, name) for row in rows] for name in ("mode", *NUMBERS)]
    samples = [list(row.samples_s) for row in rows]
    lists = [*varied, *found, samples, [KIND] * len(rows), [row.reason for row in rows]]
    table: dict[str, list[Any]] = dict(zip(columns(keys), lists, strict=True))
    parquet.write_table(pyarrow.table(table), folder / PARQUET_FILE)
    return folder / PARQUET_FILE


def _numbers(texts: Sequence[str]) -> list[Any]:
    for kind in (int, float):
        try:
            return [kind(text) for text in texts]
        except ValueError:
            continue
    return list(texts)


def _line(cells: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _cells(line: str) -> list[str]:
    """Return the cells of a line; none if it is no CSV."""
    try:
        return next(csv.reader([line.replace("\0", "?")]), [])
    except csv.Error:
        return []


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
