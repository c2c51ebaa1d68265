"""Modules of a rank that take long to import, so that ranks which start again are forked where they are imported."""

import json
import os
import sys
from functools import cache

_LIBRARIES = frozenset({"torch", "torchvision", "numpy", "scipy", "tensorflow", "keras", "transformers", "peft"})
_OWN = frozenset({"coarse", "tf_strategy"})
_VARIABLES = (
    *("OMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "TF_", "TORCH_", "PYTORCH_", "CUDA_", "CUBLAS_", "XLA_"),
    "OMPI_COMM_WORLD_LOCAL_SIZE",  # by which MKL divides the cores
)
"""Beginnings of variables that libraries read when they are imported, or first used."""


@cache
def imports() -> str:
    """Return as JSON a worker's modules of large libraries in their order of import, and variables that these read.

    The first call decides.
    """
    modules = [name for name in [*sys.modules] if name.partition(".")[0] in _LIBRARIES | _OWN]
    variables = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}
    return json.dumps({"modules": modules, "variables": variables})
