# Pure: no MPI, threads, clock or environment.
"""How many bytes each shard of a key has, learnt from the records that pass by."""

from coarse.protocol.dtypes import DType
from coarse.protocol.plan import count_shards
from coarse.protocol.records import Descriptor, Located, Record, Register, Table, Tables


class ShardSizes:
    """The part of the plan that sizes follow from: descriptors, and the largest partition size of an epoch."""

    def __init__(self) -> None:
        self._descriptors: dict[int, Descriptor] = {}
        self._partition_bytes: dict[int, int] = {}

    def note(self, record: Record) -> None:
        """A record passes; most say nothing about sizes."""
        match record:
            case Register() | Located():
                self._descriptors[record.key] = record.descriptor
            case Table():
                self._note_partition(record.epoch, record.partition_bytes)
            case Tables():
                for *_, partition_bytes in record.tables:
                    self._note_partition(record.epoch, partition_bytes)

    def descriptor(self, key: int) -> Descriptor:
        """What the key is."""
        return self._descriptors[key]

    def nbytes(self, key: int, shard: int) -> int:
        """Bytes of one shard in the current epoch."""
        descriptor = self._descriptors[key]
        num_elements = descriptor.num_elements
        num_shards = count_shards(descriptor.nbytes, self._partition_bytes[max(self._partition_bytes)])
        end = (shard + 1) * num_elements // num_shards
        return (end - shard * num_elements // num_shards) * DType(descriptor.dtype).itemsize

    def _note_partition(self, epoch: int, partition_bytes: int) -> None:
        self._partition_bytes[epoch] = max(self._partition_bytes.get(epoch, 0), partition_bytes)
