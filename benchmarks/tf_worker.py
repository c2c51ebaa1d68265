"""A worker's process of `tf_step.py`: it trains when it is asked to. Started by tf_jobs.py alone."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

if TYPE_CHECKING:
    from benchmarks.tf_training import Trainee


def main() -> None:
    """Connect to the benchmark and do what it asks for, until it says that this is all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contender", required=True)
    parser.add_argument("--talk", required=True, help="the Unix socket of the benchmark")
    parser.add_argument("--worker", type=int, default=None, help="this worker's number, where no launcher gives one")
    parser.add_argument("--inter-op", type=int, required=True, help="threads that run operations side by side")
    given = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from benchmarks.tf_training import open_trainee

    trainee = open_trainee(given.contender, given.worker, given.inter_op)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(given.talk)
        serve(connection, trainee)


def serve(connection: socket.socket, trainee: Trainee) -> None:
    """Answer each line until the one that ends."""
    lines = connection.makefile("rw", encoding="utf-8")

    def say(answer: dict[str, object]) -> None:
        lines.write(json.dumps(answer) + "\n")
        lines.flush()

    say(trainee.hello())
    for line in lines:
        request = json.loads(line)
        match request.pop("ask"):
            case "train":
                say({"elapsed_s": trainee.train(**request)})
            case "marks":
                say({"steps": trainee.marks(**request)})
            case "digest":
                say({"digest": trainee.digest()})
            case "end":
                return


if __name__ == "__main__":
    main()
