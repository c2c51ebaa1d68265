"""Program of a memory-device rank, serving until workers leave: `python -m coarse.launch.device`."""

import coarse
from coarse.session import ignore_users_signals, serve

if __name__ == "__main__":
    ignore_users_signals()
    serve()  # returns on workers alone
    raise coarse.ConfigError(
        f"worker {coarse.rank()} runs coarse.launch.device, which is for memory devices; give this rank the "
        "training script, or the role of a memory device in the partition table"
    )
