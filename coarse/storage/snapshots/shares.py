# Pure: no MPI, threads, clock or environment.
"""Who writes which tensors, where every worker holds the same ones."""

from collections.abc import Mapping


def share_of(nbytes_of: Mapping[str, int], member: int, num_members: int) -> tuple[str, ...]:
    """The names that one of several equal holders writes, about as many bytes as each other's.

    The largest first, each to whoever has the fewest bytes; whole tensors, so that a part file
    can be read by itself. The same on every rank, whatever the order of the mapping.
    """
    loads = [0] * num_members
    own = []
    for name in sorted(nbytes_of, key=lambda name: (-nbytes_of[name], name)):
        lightest = min(range(num_members), key=lambda index: (loads[index], index))
        loads[lightest] += nbytes_of[name]
        if lightest == member:
            own.append(name)
    return tuple(own)
