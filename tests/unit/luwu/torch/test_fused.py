"""torch's fused kernels in an optimizer node."""

import numpy as np
import pytest
import torch

from coarse.luwu.torch.fused import identity, kernel_of

NUMEL = 300_003
SETTINGS = {
    "AdamW": {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.1},
    "Adam": {"weight_decay": 0.1},
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
}


def stepped(optimizer: str, chunk: int) -> list[np.ndarray]:
    """Parameters and states after three steps, taken chunk by chunk."""
    rng = np.random.default_rng(0)
    kernel = kernel_of(optimizer, SETTINGS[optimizer])
    found = [rng.normal(size=NUMEL).astype(np.float32)]
    found += [np.zeros(NUMEL, np.float32) for _ in range(kernel.num_states)]
    for step in range(1, 4):
        gradient = rng.normal(size=NUMEL).astype(np.float32)
        for begin in range(0, NUMEL, chunk):
            part = slice(begin, begin + chunk)
            kernel.step(found[0][part], gradient[part], [state[part] for state in found[1:]], step)
    return found


@pytest.mark.parametrize("optimizer", SETTINGS)
def test_they_are_torchs_own_for_any_chunking_at_multiples_of_64(optimizer: str) -> None:
    rng = np.random.default_rng(0)
    parameter = torch.nn.Parameter(torch.from_numpy(rng.normal(size=NUMEL).astype(np.float32)))
    own = getattr(torch.optim, optimizer)([parameter], fused=True, **SETTINGS[optimizer])
    for _ in range(3):
        parameter.grad = torch.from_numpy(rng.normal(size=NUMEL).astype(np.float32))
        own.step()
    for chunk in (NUMEL, 131_072, 4096, 64):
        assert stepped(optimizer, chunk)[0].tobytes() == parameter.detach().numpy().tobytes()


def test_their_identity_names_version_and_processor() -> None:
    assert torch.__version__ in identity()
    assert torch.backends.cpu.get_cpu_capability() in identity()
