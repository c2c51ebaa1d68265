"""The claims of array_claims.py on a devdax device: a tree that stands for /sys, and a file for the character device.

Arguments: the folder that the claims report to; it holds `sys`, see test_memory_places.py.
"""

import runpy
import sys
from pathlib import Path

from coarse.storage import dax

dax._SYS = Path(sys.argv[1]) / "sys"
dax.device_number = lambda path: "252:0"
runpy.run_path(str(Path(__file__).with_name("array_claims.py")), run_name="__main__")
