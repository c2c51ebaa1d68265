"""Units that FCDP-Cache leaves gathered on this worker's accelerator; see [Note: never above ZeRO-3]."""

from __future__ import annotations

import torch

from coarse.parallel.sharded.unit_cache import AcceleratorCache
from coarse.torch.fsdp.account import DeviceAccount
from coarse.torch.fsdp.unit import ShardedUnit


class KeptUnits:
    """Units between their forward and their backward, oldest first; each worker decides for itself."""

    def __init__(self, policy: AcceleratorCache, account: DeviceAccount) -> None:
        self._policy = policy
        self._account = account
        self._kept: list[ShardedUnit] = []
        account.add_reclaimer(self._drop_for, limit=policy.tau)

    def manage(self, unit: ShardedUnit) -> None:
        """Decide about a unit from now on."""
        unit.fsdp.keep_gathered_if(lambda: self._keeps(unit), lambda: self._claim(unit))

    def _keeps(self, unit: ShardedUnit) -> bool:
        """Return whether a unit whose forward has just ended stays gathered."""
        capacity_bytes = self._account.capacity_bytes
        if capacity_bytes is None or not torch.is_grad_enabled() or not unit.is_clean:
            return False
        if not self._policy.keeps(self._account.used_bytes, capacity_bytes):
            return False
        self._kept.append(unit)
        return True

    def _claim(self, unit: ShardedUnit) -> None:
        """Claim a unit, which is about to be used and may not be dropped while it is."""
        if unit in self._kept:
            self._kept.remove(unit)

    def _drop_for(self, lacking_bytes: int) -> None:
        """Drop units, as the account is about to exceed tau."""
        kept_nbytes = [unit.fsdp.gathered_nbytes() for unit in self._kept]
        for _ in range(self._policy.num_dropped(kept_nbytes, lacking_bytes)):
            self._kept.pop(0).fsdp.drop_gathered()
