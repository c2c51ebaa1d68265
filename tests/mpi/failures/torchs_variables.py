"""Every worker writes what it is told of the workers' world into the folder given."""

import json
import os
import sys
from pathlib import Path

import coarse

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
told = {name: os.environ[name] for name in NAMES}
coarse.init()

assert (coarse.rank(), coarse.size()) == (int(told["RANK"]), int(told["WORLD_SIZE"]))
assert (coarse.local_rank(), coarse.local_size()) == (int(told["LOCAL_RANK"]), int(told["LOCAL_WORLD_SIZE"]))
Path(sys.argv[1], told["RANK"]).write_text(json.dumps({**told, "arguments": sys.argv[2:]}))
