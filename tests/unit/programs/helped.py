"""Programs started with --help, each in a process forked where torch and others are imported.

Arguments: a folder, and programs: paths of scripts, or names of modules. NUMBER.txt in the folder has what the program
of that place printed, and its last line is how it ended.
"""

import os
import runpy
import sys
import traceback
from pathlib import Path

import matplotlib.pyplot  # noqa: F401
import torch.distributed.fsdp  # noqa: F401

import coarse.simulation.training
import coarse.torch  # noqa: F401


def start(program: str) -> None:
    """Run a program with --help as its interpreter would."""
    sys.argv = [program, "--help"]
    if program.endswith(".py"):
        sys.path[0] = str(Path(program).parent)
        runpy.run_path(program, run_name="__main__")
    else:
        sys.path[0] = ""
        runpy.run_module(program, run_name="__main__", alter_sys=True)


def main() -> None:
    folder, *programs = sys.argv[1:]
    for number, program in enumerate(programs):
        if pid := os.fork():
            _, status = os.waitpid(pid, 0)
            with open(f"{folder}/{number}.txt", "a") as output:
                output.write(f"\nended with {os.waitstatus_to_exitcode(status)}")
            continue
        output = os.open(f"{folder}/{number}.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        try:
            start(program)
        except SystemExit as ended:
            code = ended.code
        except BaseException:
            traceback.print_exc()
            code = 1
        else:
            code = 0
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    main()
