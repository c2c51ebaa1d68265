# Pure: no MPI, threads, clock or environment.
"""Events of a trace that torch.profiler exported, sorted by kind."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coarse.errors import ConfigError

EVALUATE = "autograd::engine::evaluate_function: "
ACCUMULATE = "torch::autograd::AccumulateGrad"
STEP = re.compile(r"ProfilerStep#(\d+)")
_OPERATORS = ("cpu_op", "operator", "user_annotation", "python_function")
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset", "mtia_ccp_events", "hpu_op")
_LAUNCHES = ("runtime", "driver")
"""Endings of launch categories: cuda_runtime, cuda_driver, mtia_runtime, and in 2021 Runtime."""
_BACKWARD = re.compile(r"Backward\d*$")
_COMMUNICATION = (
    "c10d::", "nccl:", "gloo:", "mpi:", "ucc:", "record_param_comms", "torch::distributed::reducer",
    "torch.distributed.ddp.reducer",
)  # fmt: skip
_REDUCING = ("allreduce", "reduce_scatter", "_reduce_scatter", "all_reduce", "reduce")
_INTEGERS = ("int", "long", "byte", "char", "short", "bool", "long int", "unsigned char", "signed char")
US_PER_S = 1e6

Thread = tuple[object, object]
"""Process and thread, as the trace names them."""


@dataclass(frozen=True, slots=True)
class Event:
    """Event with a duration, in microseconds on the trace's clock."""

    name: str
    category: str
    thread: Thread
    begin_us: float
    end_us: float
    args: Mapping[str, Any]
    number: int
    """Index in traceEvents."""

    @property
    def sequence(self) -> int | None:
        """Number that an operator of forward shares with its function in backward, if any."""
        found = self.args.get("Sequence number")
        return found if type(found) is int and found >= 0 else None

    @property
    def is_backward(self) -> bool:
        """True if autograd runs it in backward."""
        return self.name.startswith(EVALUATE) or self.name == ACCUMULATE or bool(_BACKWARD.search(self.name))

    @property
    def is_communication(self) -> bool:
        """True if it is a collective, or DDP's copy for one."""
        return self.name.startswith(_COMMUNICATION)


@dataclass(frozen=True, kw_only=True)
class Events:
    """Events of one trace that have a duration, each list in the order of begins."""

    operators: Sequence[Event]
    """Operators of the host's threads, and ranges that the user or torch named."""
    kernels: Sequence[Event]
    launches: Sequence[Event]
    devices: Mapping[object, str]
    """Names of GPUs by their numbers."""
    where: str


def events_of(document: Mapping[str, Any], where: str) -> Events:
    """Return a trace's events; raise ConfigError, with its number, for one without a valid time."""
    found: dict[str, list[Event]] = {"operators": [], "kernels": [], "launches": []}
    for event in _lasting(document["traceEvents"], where):
        kind = event.category.lower()
        if kind in _OPERATORS:
            found["operators"].append(event)
        elif kind in _KERNELS:
            found["kernels"].append(event)
        elif kind.endswith(_LAUNCHES):
            found["launches"].append(event)
    for events in found.values():
        events.sort(key=lambda event: (event.begin_us, -event.end_us))
    properties = document.get("deviceProperties")
    devices = {each.get("id"): str(each.get("name")) for each in properties or () if isinstance(each, dict)}
    return Events(**found, devices=devices, where=where)


def _lasting(listed: Sequence[object], where: str) -> Iterator[Event]:
    for number, raw in enumerate(listed):
        if not isinstance(raw, dict):
            raise ConfigError(
                f"{where}: event {number} must be an object, got {type(raw).__name__}; export the trace again",
                key="model",
            )
        if raw.get("ph") != "X":
            continue
        times = []
        for key in ("ts", "dur"):
            value = raw.get(key)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ConfigError(
                    f"{where}: event {number} ({raw.get('name')!r}): {key} must be microseconds, got {value!r}; export "
                    "the trace again",
                    key="model",
                )
            times.append(float(value))
        begin_us, duration_us = times
        if duration_us < 0:
            raise ConfigError(
                f"{where}: event {number} ({raw.get('name')!r}) ends {-duration_us:g} us before it begins; export the "
                "trace again",
                key="model",
            )
        args = raw.get("args")
        yield Event(
            name=str(raw.get("name", "")),
            category=str(raw.get("cat", "")),
            thread=(raw.get("pid"), raw.get("tid")),
            begin_us=begin_us,
            end_us=begin_us + duration_us,
            args=args if isinstance(args, dict) else {},
            number=number,
        )


def is_reduction(event: Event) -> bool:
    """Return whether an event is torch's record of a collective that sums numbers."""
    name, dtype = str(event.args.get("Collective name", "")), str(event.args.get("dtype", "")).lower()
    return event.name == "record_param_comms" and name.startswith(_REDUCING) and dtype not in _INTEGERS
