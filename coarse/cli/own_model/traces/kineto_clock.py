# Pure: no MPI, threads, clock or environment.
"""Clocks for the host's requests: done at once on a CPU, at the end of a kernel on a GPU."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from coarse.cli.own_model.traces.kineto_events import US_PER_S, Event, Events, Thread


class StepClock(Protocol):
    """Clock of a step, in seconds of compute."""

    gpu: str
    counted: str

    def at_s(self, host_us: float) -> float:
        """Return the time at which the work requested by the host's threads until then was done."""
        ...


class HostClock:
    """Time of threads that compute themselves, without their time in collectives."""

    gpu = "CPU"
    counted = "the threads' own time, without collectives and DDP's copies for them"

    def __init__(self, operators: Iterable[Event], threads: set[Thread]) -> None:
        self._begins: list[float] = []
        self._ends: list[float] = []
        self._before: list[float] = []
        spent = 0.0
        for event in operators:
            if not event.is_communication or event.thread not in threads:
                continue
            begin_us = max(event.begin_us, self._ends[-1] if self._ends else event.begin_us)
            if event.end_us > begin_us:
                self._begins.append(begin_us)
                self._ends.append(event.end_us)
                self._before.append(spent)
                spent += event.end_us - begin_us

    def at_s(self, host_us: float) -> float:
        """Return the threads' own seconds until then; the zero is that of the trace."""
        index = bisect_right(self._begins, host_us) - 1
        if index < 0:
            return host_us / US_PER_S
        spent = self._before[index] + min(host_us, self._ends[index]) - self._begins[index]
        return (host_us - spent) / US_PER_S


class DeviceClock:
    """End of the last kernel that the host had launched, NCCL's excluded."""

    counted = "by the ends of the kernels that were launched, without NCCL's"

    def __init__(self, launched: Sequence[tuple[float, Event]], gpu: str) -> None:
        """Keep `launched`: (time of the launch, kernel) in the order of launches, at least one."""
        self.gpu = gpu
        self._launches_us = [launch_us for launch_us, _ in launched]
        self._begins_us = [kernel.begin_us for _, kernel in launched]
        self._ends_us: list[float] = []
        for _, kernel in launched:
            self._ends_us.append(max(kernel.end_us, self._ends_us[-1] if self._ends_us else kernel.end_us))

    def at_s(self, host_us: float) -> float:
        """Return the end of the last kernel launched before then; before any launch, the first kernel's begin."""
        index = bisect_left(self._launches_us, host_us) - 1
        at_us = self._ends_us[index] if index >= 0 else self._begins_us[0]
        return at_us / US_PER_S


def clock_of(events: Events, begin_us: float, end_us: float, threads: set[Thread]) -> StepClock:
    """Return the clock of a step: the GPU's if kernels were launched between its begin and end."""
    launched = list(_launched(events, begin_us, end_us))
    if not any("mem" not in kernel.category.lower() for _, kernel in launched):
        within = (event for event in events.operators if event.begin_us >= begin_us)
        return HostClock(within, threads)
    launched.sort(key=lambda pair: pair[0])
    device = launched[0][1].args.get("device")
    return DeviceClock(launched, events.devices.get(device, "an accelerator"))


def _launched(events: Events, begin_us: float, end_us: float) -> Iterable[tuple[float, Event]]:
    """Yield (time of the launch, kernel) of compute kernels launched in a time span.

    A launch is found by correlation, else by the operator's id.
    """
    launches = {event.args.get("correlation"): event.begin_us for event in events.launches}
    operators: Mapping[object, float] = {event.args.get("External id"): event.begin_us for event in events.operators}
    for kernel in events.kernels:
        at_us = launches.get(kernel.args.get("correlation", object()))
        if at_us is None:
            at_us = operators.get(kernel.args.get("External id", object()))
        if at_us is not None and begin_us <= at_us < end_us and not _is_collective(kernel):
            yield at_us, kernel


def _is_collective(kernel: Event) -> bool:
    name = kernel.name.lower()
    return "nccl" in name or "rccl" in name or "mscclpp" in name
