"""A feature of somebody else's in a job: numbers of workers, added by devices, told by messages between them."""

import json
import sys
from pathlib import Path

import coarse
from coarse.session import current
from tests.support.tally import Counting

folder, features = Path(sys.argv[1]), json.loads(sys.argv[2])
coarse.init({"features": features, "partition": sys.argv[3]})
runtime = current()
counting = runtime.require_client().part(Counting)
assert runtime.require_client().part(Counting) is counting
counting.count(10 ** coarse.rank())
totals = counting.wait(runtime.placement.num_devices)
coarse.barrier()
own = coarse.statistics()["devices"][runtime.placement.local_proxies[coarse.rank()]]
(folder / f"{coarse.rank()}").write_text(json.dumps([sorted(totals.items()), own["tallied"]]))
