"""Check that this torch has the hooks of FSDP2 that sharded modes use (see fsdp2.py)."""

from __future__ import annotations

import importlib

import torch

from coarse.errors import UnsupportedVersionError

OLDEST, NEWEST = "2.9", "2.13"
"""Versions of torch for which fsdp2.py was written."""
_PRIVATE = "torch.distributed.fsdp._fully_shard"
_HOOKS = {
    ("torch.distributed.fsdp", "FSDPModule"): (
        "set_custom_all_gather",
        "set_custom_reduce_scatter",
        "set_force_sum_reduction_for_comms",
        "set_gradient_divide_factor",
        "set_modules_to_forward_prefetch",
        "_get_fsdp_state",
    ),
    (f"{_PRIVATE}._fsdp_state", "FSDPState"): ("_lazy_init", "_root_pre_forward", "_pre_backward"),
    (f"{_PRIVATE}._fsdp_param_group", "FSDPParamGroup"): (
        "reshard",
        "_to_sharded",
        "_to_unsharded",
        "unshard",
        "wait_for_unshard",
        "post_backward",
    ),
    (f"{_PRIVATE}._fsdp_param", "FSDPParam"): (
        "all_gather_inputs",
        "free_unsharded_param",
        "to_sharded_dtensor",
        "_setattr_on_modules",
    ),
}
"""Methods that are called or replaced, by module and class."""


def require_hooks() -> None:
    """Return where this torch has every hook that sharded modes use, or raise.

    Raises:
        UnsupportedVersionError: the hooks that it lacks, its version, and the versions that have them.
    """
    missing = [hook for place, names in _HOOKS.items() for hook in _missing(*place, names)]
    if missing:
        raise UnsupportedVersionError(
            f"torch {torch.__version__} has no {', '.join(missing)}, which coarse.torch.fully_shard needs of FSDP2; "
            f"install torch {OLDEST} to {NEWEST}"
        )


def _missing(module: str, kind: str, names: tuple[str, ...]) -> list[str]:
    try:
        found = getattr(importlib.import_module(module), kind)
    except (ImportError, AttributeError):
        return [f"{module}.{kind}"]
    return [f"{kind}.{name}" for name in names if not hasattr(found, name)]
