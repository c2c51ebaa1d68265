"""Trace of a file, by its content: Kineto's JSON, Chakra's messages, or coarse's own for Perfetto."""

import gzip
import json
import zlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from coarse.cli.chakra.graph import GraphError
from coarse.cli.chakra.messages import TraceFileError, decoded, metadata_of
from coarse.cli.own_model.description import OwnModel
from coarse.cli.own_model.traces.chakra_step import chakra_step
from coarse.cli.own_model.traces.kineto import kineto_step
from coarse.cli.own_model.traces.perfetto_step import is_ours, perfetto_step
from coarse.cli.own_model.traces.step import TracedStep, model_of_step
from coarse.errors import ConfigError

CHAKRA_SUFFIXES = (".et", ".et.gz")
SUFFIXES = (".json", ".json.gz", *CHAKRA_SUFFIXES)
"""Suffixes of files that may hold a trace."""
_GZIP = b"\x1f\x8b"
_NOT_WHOLE = "name a trace that was written to its end"


def content_of(path: Path) -> bytes:
    """Return a file's bytes, unpacked if gzip packed them; raise ConfigError if they end too early."""
    data = path.read_bytes()
    if not data.startswith(_GZIP):
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, OSError, zlib.error) as error:
        raise ConfigError(f"{path}: gzip cannot unpack it ({error}); {_NOT_WHOLE}", key="model") from error


def json_of(path: Path, what: str) -> object:
    """Return a JSON file's value; raise ConfigError with line and column if it is none."""
    try:
        return json.loads(content_of(path), strict=False)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: this is not JSON ({error}); name {what}", key="model") from error


def is_trace(document: object) -> bool:
    """Return whether a JSON value is a trace, and not a configuration."""
    return isinstance(document, list) or (isinstance(document, dict) and "traceEvents" in document)


def traced_model(path: Path, document: object, step: int | None) -> OwnModel:
    """Return the model of a trace; `document` is a JSON file's value, or None for a Chakra file.

    Raises:
        ConfigError: a file that is no trace of a step of training; with the record or event at fault.
    """
    name = path.name.split(".")[0] or path.name
    return model_of_step(_step(path, document, step), name, str(path))


def _step(path: Path, document: object, step: int | None) -> TracedStep:
    where = str(path)
    if document is None:
        _require_no_number(step, where, "a Chakra trace")
        try:
            content = content_of(path)
            is_simulated = metadata_of(content).get("kind") == "simulated"
            return chakra_step(list(decoded(content)), where, is_simulated=is_simulated)
        except (TraceFileError, GraphError) as error:
            raise ConfigError(f"{where}: {error}; name a Chakra trace (.et) that is whole", key="model") from error
    entries: Mapping[str, object] = document if isinstance(document, dict) else {"traceEvents": document}
    events = entries.get("traceEvents")
    if not isinstance(events, list) or not events:
        came = "an empty list" if events == [] else type(events).__name__
        raise ConfigError(
            f"{where}: traceEvents must be a list of events, got {came}; export a trace by torch.profiler's "
            "export_chrome_trace",
            key="model",
        )
    if is_ours(events):
        _require_no_number(step, where, "a trace of coarse's own")
        return perfetto_step(events, where)
    return kineto_step(entries, where, step)


def _require_no_number(step: int | None, where: str, what: str) -> None:
    if step is not None:
        raise ConfigError(
            f"{where}: --step is of traces with ProfilerStep marks, and this is {what}; leave it out", key="step"
        )


@lru_cache(maxsize=8)
def trace_in(path: Path, changed_ns: int, nbytes: int, step: int | None) -> OwnModel | None:
    """Return the model of a file that holds a trace, or None if it holds another JSON object.

    The file is read once for all points of a sweep: the time of its last change and its size identify it.
    """
    if path.name.endswith(CHAKRA_SUFFIXES):
        return traced_model(path, None, step)
    document = json_of(path, "a trace of torch.profiler, or the config.json of a model")
    return traced_model(path, document, step) if is_trace(document) else None
