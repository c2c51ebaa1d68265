# Pure: no MPI, threads, clock or environment.
"""Which step of a Kineto trace is taken, and where its forward and its backward lie.

[Note: which step] ProfilerStep#N marks a step; where nobody called `step()`, each Optimizer.step ends one, and where
nobody stepped, the trace is one. Of the steps with a backward those count that have as many gradients as most, and of
these the median by its duration is taken, of an even number the faster of the middle two. --step N takes another.

[Note: passes] Backward is what autograd's engine runs. An operator of forward that begins between two of its functions
parts two passes: a step with several microbatches. Gradients are those of the last, and what ran before it counts as
forward, as DDP under no_sync sends them.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from coarse.cli.own_model.traces.kineto_events import ACCUMULATE, EVALUATE, STEP, Event, Events
from coarse.errors import ConfigError

_OPTIMIZER = "Optimizer.step#"
_BEFORE_FORWARD = ("Optimizer.", "enumerate(DataLoader)")
_HOW = (
    "trace a whole step, forward, loss.backward() and the optimizer, by torch.profiler.profile(activities=["
    "ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True)"
)


@dataclass(frozen=True, kw_only=True)
class Window:
    """One step's time on the host."""

    number: int
    label: str
    begin_us: float
    end_us: float
    of_process: object = None
    """Where it is known: a trace may have several."""

    @property
    def duration_us(self) -> float:
        """From begin to end."""
        return self.end_us - self.begin_us


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step's operators, and the passes that autograd made."""

    window: Window
    how_chosen: str
    operators: Sequence[Event]
    functions: Sequence[Event]
    """Of the last pass of backward."""
    forward: Mapping[int, Event]
    """By its sequence number, the operator that made a function of backward."""
    num_passes: int
    forward_begin_us: float

    @property
    def backward_begin_us(self) -> float:
        """Of the last pass."""
        return self.functions[0].begin_us

    @property
    def backward_end_us(self) -> float:
        """Of the last pass."""
        return max(event.end_us for event in self.functions)


def step_of(events: Events, number: int | None) -> Step:
    """The step that is taken; see [Note: which step].

    Raises:
        ConfigError: no operators, no backward, or no step of that number; it says what to pass to the profiler.
    """
    where = events.where
    if not any(event.category.lower() in ("cpu_op", "operator") for event in events.operators):
        raise ConfigError(
            f"{where}: the trace has no operators of the host (events of category cpu_op), from which the order of "
            f"gradients would follow; {_HOW}",
            key="model",
        )
    counted = [(window, _num_gradients(events, window)) for window in _windows(events)]
    candidates = [(window, num) for window, num in counted if num]
    if number is not None and number not in [window.number for window, _ in counted]:
        known = ", ".join(str(window.number) for window, _ in counted)
        raise ConfigError(f"{where}: --step {number} is not in the trace, which has {known}; choose one", key="step")
    if number is not None:
        candidates = [(window, num) for window, num in candidates if window.number == number]
    if not candidates:
        what = f"step {number}" if number is not None else "the trace"
        raise ConfigError(
            f"{where}: {what} has no backward pass (no {ACCUMULATE}), as a trace of inference; {_HOW}", key="model"
        )
    usual = max(Counter(num for _, num in candidates).items(), key=lambda item: (item[1], item[0]))[0]
    usual_ones = sorted((window for window, num in candidates if num == usual), key=lambda window: window.duration_us)
    window = usual_ones[(len(usual_ones) - 1) // 2]
    if number is not None:
        how = "as asked"
    elif len(usual_ones) == 1:
        how = "the only one with a backward" if len(candidates) == 1 else "the only one with so many gradients"
    else:
        how = f"the median of {len(usual_ones)} by duration"
    return _step(events, window, how)


def _windows(events: Events) -> Iterator[Window]:
    """Each step's time; see [Note: which step]."""
    marked = [(event, STEP.match(event.name)) for event in events.operators]
    found = [(event, int(match[1])) for event, match in marked if match]
    if found:
        for event, number in found:
            yield Window(
                number=number, label=event.name, begin_us=event.begin_us, end_us=event.end_us,
                of_process=event.thread[0],
            )  # fmt: skip
        return
    begin_us = events.operators[0].begin_us
    last_us = max(event.end_us for event in events.operators) + 1.0
    ends_us = [event.end_us for event in events.operators if event.name.startswith(_OPTIMIZER)]
    if not ends_us:
        yield Window(number=0, label="the whole trace, in which no step is marked", begin_us=begin_us, end_us=last_us)
        return
    for number, end_us in enumerate(ends_us):
        yield Window(number=number, label=f"step {number}, up to Optimizer.step", begin_us=begin_us, end_us=end_us)
        begin_us = end_us


def _within(events: Sequence[Event], window: Window) -> Iterator[Event]:
    first = bisect_left(events, window.begin_us, key=lambda event: event.begin_us)
    for event in events[first:]:
        if event.begin_us >= window.end_us:
            return
        if window.of_process in (None, event.thread[0]):
            yield event


def _num_gradients(events: Events, window: Window) -> int:
    names = Counter(event.name for event in _within(events.operators, window))
    return names[ACCUMULATE] or names[EVALUATE + ACCUMULATE]


def _step(events: Events, window: Window, how: str) -> Step:
    operators = list(_within(events.operators, window))
    backward = [event for event in operators if event.is_backward]
    forward = _forward_operators(operators, backward)
    passes = list(_passes(backward, sorted(event.begin_us for event in forward.values())))
    if forward:
        begin_us = min(event.begin_us for event in forward.values())
    else:
        operations = (event for event in operators if event.category.lower() in ("cpu_op", "operator"))
        begin_us = next(each.begin_us for each in operations if not _is_before_forward(each, operators))
    return Step(
        window=window, how_chosen=how, operators=operators, functions=passes[-1], forward=forward,
        num_passes=len(passes), forward_begin_us=min(begin_us, passes[-1][0].begin_us),
    )  # fmt: skip


def _is_before_forward(event: Event, operators: Sequence[Event]) -> bool:
    """Whether it is a part of zeroing gradients or loading data, or one of the marks itself."""
    return event.name.startswith((*_BEFORE_FORWARD, "ProfilerStep")) or any(
        outer.name.startswith(_BEFORE_FORWARD)
        and outer.thread == event.thread
        and outer.begin_us <= event.begin_us < outer.end_us
        for outer in operators
    )


def _forward_operators(operators: Sequence[Event], backward: Sequence[Event]) -> dict[int, Event]:
    """By sequence number the operator that made a function of backward, those apart that backward runs itself.

    Operators around it, and such as made no function, have the number that is next, and begin before it.
    """
    sequences = {event.sequence for event in backward}
    spans = _merged(backward)
    begins = [begin_us for begin_us, _ in spans]
    found = {}
    for event in operators:
        if event.is_backward or event.sequence is None or event.sequence not in sequences:
            continue
        index = bisect_right(begins, event.begin_us) - 1
        if index < 0 or event.begin_us >= spans[index][1]:
            found[event.sequence] = event
    return found


def _merged(events: Sequence[Event]) -> list[tuple[float, float]]:
    """The times in which one of them ran."""
    spans: list[tuple[float, float]] = []
    for event in events:
        if spans and event.begin_us < spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], event.end_us))
        else:
            spans.append((event.begin_us, event.end_us))
    return spans


def _passes(backward: Sequence[Event], forward_us: Sequence[float]) -> Iterator[list[Event]]:
    """Functions of each pass that has gradients; see [Note: passes]."""
    current: list[Event] = []
    end_us = 0.0
    for event in backward:
        if current and event.begin_us >= end_us:
            following = bisect_left(forward_us, end_us)
            if following < len(forward_us) and forward_us[following] < event.begin_us:
                if any(each.name.endswith(ACCUMULATE) for each in current):
                    yield current
                current = []
        current.append(event)
        end_us = max(end_us, event.end_us)
    if any(each.name.endswith(ACCUMULATE) for each in current):
        yield current
