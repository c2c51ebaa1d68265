"""Contributions and results that lie in a client's own memory, which it lends, instead of its region."""

from collections.abc import Mapping
from typing import NamedTuple

from coarse.protocol.dtypes import DType
from coarse.protocol.records import Lend
from coarse.proxy.instructions import Region
from coarse.storage.lent import LentArray


class Lender(NamedTuple):
    """Client of this device's node."""

    process_id: int
    label: str
    """Name of the client, for errors."""


class Loans:
    """Memory that clients lend, found by key and by the region that it replaces."""

    def __init__(self, lenders: Mapping[int, Lender]) -> None:
        self._lenders = lenders
        """Client's process and name, by client."""
        self._by_key: dict[int, dict[int, Lend]] = {}
        """Memory that a client lends for a key: key -> client -> record."""

    def on_lend(self, lend: Lend) -> None:
        """Note that a client lends memory, or has its region used again."""
        self.end(lend.key, lend.client)
        if lend.source or lend.target:
            self._by_key.setdefault(lend.key, {})[lend.client] = lend

    def end(self, key: int, client: int) -> None:
        """End what a client lends of a key: it may not be touched any more."""
        lent = self._by_key.get(key)
        if lent is not None and lent.pop(client, None) is not None and not lent:
            del self._by_key[key]

    def source(self, key: int, region: Region, dtype: DType, num_elements: int) -> LentArray | None:
        """Return the contribution that replaces a region or a part of one; None if it is in the region."""
        lend = self._at(key, region)
        return None if lend is None else self._array(lend, lend.source, region, dtype, num_elements)

    def target(self, key: int, region: Region, dtype: DType, num_elements: int) -> LentArray | None:
        """Return the place of the result that replaces a region or a part of one.

        It is None if the result belongs in the region.
        """
        lend = self._at(key, region)
        return None if lend is None else self._array(lend, lend.target, region, dtype, num_elements)

    def _at(self, key: int, region: Region) -> Lend | None:
        if key not in self._by_key:
            return None
        for lend in self._by_key[key].values():
            if lend.device == region.device and lend.offset <= region.offset < lend.offset + lend.nbytes:
                return lend
        return None

    def _array(
        self, lend: Lend, address: int, region: Region, dtype: DType, num_elements: int
    ) -> LentArray | None:
        if not address:
            return None
        lender = self._lenders[lend.client]
        at = address + region.offset - lend.offset
        return LentArray(lender.label, lender.process_id, at, dtype.storage, num_elements)
