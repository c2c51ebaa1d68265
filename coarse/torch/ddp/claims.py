"""Claims of each DistributedOptimizer of this process until it is closed: a prefix, and parameters."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.runtime import Runtime


class Claims:
    """Claims of all optimizers of one runtime."""

    def __init__(self) -> None:
        self._prefixes: set[str] = set()
        self._numbers: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
        """Numbers of optimizers, by the prefix that they are counted under."""
        self._owners = WeakTensorKeyDictionary()
        """Parameter -> prefix of the optimizer that exchanges its gradients."""

    def claim_prefix(self, prefix: str, among: str = "") -> str:
        """Claim a prefix, or `among` with the next number where it is empty, and return it.

        Raises:
            ValueError: another optimizer has it.
        """
        claimed = prefix or f"{among}optimizer{next(self._numbers[among])}/"
        if claimed in self._prefixes:
            raise ValueError(
                f"another DistributedOptimizer uses the prefix {prefix!r}; give each its own, or close() it"
            )
        self._prefixes.add(claimed)
        return claimed

    def owner_of(self, parameter: torch.Tensor) -> str | None:
        """Return the prefix of the optimizer that exchanges a parameter's gradients; None if there is none."""
        found: str | None = self._owners.get(parameter)
        return found

    def claim_parameters(self, parameters: Mapping[str, torch.Tensor], prefix: str) -> None:
        """Let an optimizer exchange the gradients of named parameters.

        Raises:
            ValueError: another one exchanges some of them, and nothing is claimed.
        """
        taken = {name: owner for name, parameter in parameters.items() if (owner := self.owner_of(parameter))}
        taken = {name: owner for name, owner in taken.items() if owner != prefix}
        if taken:
            name, owner = next(iter(taken.items()))
            raise ValueError(
                f"{len(taken)} parameters, such as {name!r}, have a DistributedOptimizer already, with the prefix "
                f"{owner!r}; close() that one before you make another, and keep a reference until then: it is at work "
                "as long as the parameters are, also where no name refers to it any more"
            )
        for parameter in parameters.values():
            self._owners[parameter] = prefix

    def release(self, prefix: str, parameters: Iterable[torch.Tensor]) -> None:
        """Release the claims of an optimizer that has been closed."""
        self._prefixes.discard(prefix)
        for parameter in parameters:
            if self.owner_of(parameter) == prefix:
                del self._owners[parameter]


_claims: "WeakKeyDictionary[Runtime, Claims]" = WeakKeyDictionary()


def claims_of(runtime: "Runtime") -> Claims:
    """Return the claims of a runtime's optimizers."""
    return _claims.setdefault(runtime, Claims())
