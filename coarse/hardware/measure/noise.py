# Pure: no MPI, threads, clock or environment.
"""Noise of a machine while it was measured."""

_EMULATOR = "QEMU TCG"
"""Part of the name of each processor that QEMU translates. Under KVM it has the name of the one beneath."""
NOISY = 0.1
"""Share of the time that measuring processes may wait for a core. On a quiet machine it is below a hundredth."""


def noise_of(ran_s: float, waited_s: float) -> float:
    """Return the share of the time, in which processes could have run, that they waited for a core."""
    return waited_s / max(waited_s + ran_s, 1e-9)


def noise_note(noise: float) -> str:
    """Return the meaning of a share for the measured numbers, in a sentence."""
    note = f"the measuring processes waited for a core {noise:.0%} of the time"
    if noise <= NOISY:
        return f"{note}."
    return f"{note}: others used the machine, so its rates may be far too low; measure again when it is quiet."


def emulation_note(cpu: str) -> str | None:
    """Return the warning that belongs to times measured with an emulated processor; None for a real one.

    Args:
        cpu: the processor's name, as the kernel has it.
    """
    if _EMULATOR not in cpu:
        return None
    return f"{cpu} is a processor in software: these times are the emulator's and tell nothing of the memory"
