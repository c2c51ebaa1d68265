"""Why a stated number is missed, in seconds: what it would need, and what bounds ours."""

from experiments.coarse_paper.cells import Cell, outcome
from experiments.coarse_paper.settings import allreduce, blocked_ratio, dense
from experiments.validation.claims import Number


def why_behind(cell: Cell) -> str:
    """Why COARSE is slower: where the bytes of its own split have to pass."""
    ours, ring = outcome(cell), allreduce(cell)
    return (
        f"{size_of(cell)}: {ours.proxy_share:.0%} of bytes go to devices, for which {ours.busiest} is busy for "
        f"{ours.busiest_s:.3f} s; backward hides at most {ours.backward_s:.3f} s of it, and "
        f"all-reduce blocks for {ring.exposed_s:.3f} s"
    )


def why_ahead(cell: Cell) -> str:
    """Why COARSE is faster where the paper has it slower."""
    if cell.policy == "auto":
        return "auto tries all-reduce itself (m = 0) among its splits, so it is never slower"
    ours, ring = outcome(cell), allreduce(cell)
    return (
        f"{size_of(cell)}: all-reduce blocks for its whole ring, {ring.exposed_s:.3f} s; pushes begin with backward, "
        f"and {ours.exposed_s:.3f} s are left of them"
    )


def size_of(cell: Cell) -> str:
    """Workers + devices."""
    return f"{cell.num_workers}+{cell.num_devices or cell.num_workers}"


def why_not(cell: Cell, stated: float) -> str:
    """What the stated speed-up would need, and the most that the inputs can give."""
    slow, ours = dense(cell), outcome(cell)
    most = slow.iteration_s / slow.compute_s
    given = f"DENSE takes {slow.iteration_s:.3f} s, compute alone {slow.compute_s:.3f} s"
    if most < stated:
        return f"{given}: no synchronisation, however fast, gains more than {most:.1f}x"
    needed_s = slow.iteration_s / stated - slow.compute_s
    blocked = f"{stated}x needs {needed_s:.3f} s blocked, COARSE has {ours.exposed_s:.3f} s"
    if ours.least_blocked_s > needed_s:
        return f"{given}: {blocked}, at least {ours.least_blocked_s:.3f} s by the bytes over {ours.busiest}"
    return f"{given}: {blocked}"


def batch_why(same: float, larger: float, small_s: float, large_s: float) -> str:
    """How much of a gain comes from synchronising half as often."""
    return (
        f"at batch 2 COARSE is at {same - 1:+.0%}; batch 4 computes only {2 * small_s / large_s - 1:+.0%} more "
        f"samples/s, so the rest, to {larger - 1:+.0%}, comes from half as many synchronisations per sample"
    )


def why_blocked(members: list[Cell], stated: Number) -> str:
    """The seconds behind blocked times over all-reduce's, and what bounds the longest or shortens the shortest."""
    if stated.low > 1 and members[0].policy == "auto":
        return "auto tries all-reduce itself (m = 0) among its splits, so it never blocks longer"
    parts = [
        f"{_named(cell)} {outcome(cell).exposed_s:.3f} s against {allreduce(cell).exposed_s:.3f} s" for cell in members
    ]
    longest, shortest = max(members, key=blocked_ratio), min(members, key=blocked_ratio)
    least_s = outcome(longest).least_blocked_s
    if least_s > allreduce(longest).exposed_s:
        parts.append(f"and {_named(longest)} not below {least_s:.3f} s by the bytes over {outcome(longest).busiest}")
    if blocked_ratio(shortest) < stated.low:
        parts.append(f"and {_named(shortest)} hides pushes beneath {outcome(shortest).backward_s:.3f} s of backward")
    return ", ".join(parts)


def _named(cell: Cell) -> str:
    return f"{size_of(cell)}{f' batch {cell.batch}' if cell.batch != 2 else ''}"
