"""Through which of coarse's functions one bucket passes on a worker, from its first hook to the optimizer's step.

    mpirun -n 4 python benchmarks/call_walk.py [--functions]

A model of one bucket takes a step on 2 workers and 2 memory devices while worker 0 counts calls (sys.setprofile) in
its own thread. What is printed is the number of distinct functions of coarse, of calls, and of files. Kind: measured.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

import torch

import coarse
import coarse.torch as ct

_WARM_UP_STEPS = 3


class CallCounter:
    """Counts calls of coarse's own functions while it is the profiler of its thread."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self._package = str(Path(coarse.__file__).parent)

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """See sys.setprofile."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(self._package):
            self.calls[str(Path(code.co_filename).relative_to(self._package)), code.co_qualname] += 1


def counted_step() -> Counter[tuple[str, str]]:
    """The calls of one training step, by file and function."""
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    optimizer = ct.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    counter = CallCounter()
    for step in range(_WARM_UP_STEPS + 1):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 64)).sum()
        if step == _WARM_UP_STEPS:
            sys.setprofile(counter)
        loss.backward()
        optimizer.step()
        sys.setprofile(None)
    return counter.calls


def main() -> None:
    """Print what worker 0 counted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--functions", action="store_true", help="list the functions too")
    options = parser.parse_args()
    ct.init({"partition": "2:2", "policy": "devices"})
    calls = counted_step()
    if coarse.rank() == 0:
        files = {file for file, _ in calls}
        print(f"{len(calls)} functions, {calls.total()} calls, {len(files)} files (measured)")
        if options.functions:
            print(*sorted(f"{file} {name} {number}" for (file, name), number in calls.items()), sep="\n")


if __name__ == "__main__":
    main()
