"""The program of a memory-device rank: serves until the workers leave (`python -m coarse.launch.device`)."""

import signal

import coarse
from coarse.session import serve

if __name__ == "__main__":
    for number in (signal.SIGUSR1, signal.SIGUSR2):  # mpirun passes them to all ranks; they are for the script
        signal.signal(number, signal.SIG_IGN)
    serve()  # returns on workers alone
    raise coarse.ConfigError(
        f"worker {coarse.rank()} runs coarse.launch.device, which is for memory devices; give this rank the "
        "training script, or the role of a memory device in the partition table"
    )
