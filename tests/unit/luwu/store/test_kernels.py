"""One optimizer step in numpy."""

import numpy as np
import pytest
import torch

from coarse.luwu.store.kernels import TORCH_BOUND, Adam, Kernel, Sgd

KERNELS: dict[str, tuple[Kernel, type[torch.optim.Optimizer], dict[str, object]]] = {
    "AdamW": (
        Adam(lr=3e-4, beta2=0.95, weight_decay=0.1, is_decoupled=True),
        torch.optim.AdamW,
        {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.1},
    ),
    "Adam": (Adam(), torch.optim.Adam, {}),
    "Adam with decay": (Adam(weight_decay=0.1, eps=1e-6), torch.optim.Adam, {"weight_decay": 0.1, "eps": 1e-6}),
    "SGD": (Sgd(lr=0.1), torch.optim.SGD, {"lr": 0.1}),
    "SGD with momentum": (
        Sgd(lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01},
    ),
    "SGD by Nesterov": (
        Sgd(lr=0.1, momentum=0.9, nesterov=True),
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    ),
}
NUMEL = 40_003


def drawn(steps: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    scales = 10.0 ** rng.uniform(-4, 2, NUMEL)
    return rng.normal(size=NUMEL).astype(np.float32), (rng.normal(size=(steps, NUMEL)) * scales).astype(np.float32)


def stepped(kernel: Kernel, values: np.ndarray, gradients: np.ndarray, chunk: int) -> list[np.ndarray]:
    """Parameters and states after all steps, taken chunk by chunk."""
    found = [values.copy(), *(np.zeros_like(values) for _ in range(kernel.num_states))]
    for step, gradient in enumerate(gradients, 1):
        for begin in range(0, NUMEL, chunk):
            part = slice(begin, begin + chunk)
            kernel.step(found[0][part], gradient[part], [state[part] for state in found[1:]], step)
    return found


@pytest.mark.parametrize("name", KERNELS)
def test_the_bits_are_the_same_for_any_chunking(name: str) -> None:
    kernel = KERNELS[name][0]
    values, gradients = drawn(3)
    untouched = gradients.copy()
    wanted = stepped(kernel, values, gradients, NUMEL)
    for chunk in (977, 16_384, 20_000):
        for one, other in zip(stepped(kernel, values, gradients, chunk), wanted, strict=True):
            assert one.tobytes() == other.tobytes()
    assert gradients.tobytes() == untouched.tobytes()


@pytest.mark.parametrize("name", KERNELS)
def test_a_step_is_torchs_within_the_bound(name: str) -> None:
    kernel, made, settings = KERNELS[name]
    values, gradients = drawn(20)
    parameter = torch.nn.Parameter(torch.from_numpy(values.copy()))
    optimizer = made([parameter], foreach=False, **settings)
    states = [np.zeros_like(values) for _ in range(kernel.num_states)]
    for step, gradient in enumerate(gradients, 1):
        before = parameter.detach().numpy().copy()
        kept = list(optimizer.state[parameter].values()) if step > 1 else []
        if step > 1:  # each step begins from torch's state, so that the bound is of one step
            states = [kept_state.numpy().copy() for kept_state in kept if kept_state.dim()][: kernel.num_states]
        before_states = [state.copy() for state in states]
        found = before.copy()
        kernel.step(found, gradient, states, step)
        parameter.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
        wanted = parameter.detach().numpy()
        added = np.abs(wanted - before)
        if isinstance(kernel, Sgd):
            added = kernel.lr * (np.abs(gradient) + sum(np.abs(state) for state in before_states))
        room = TORCH_BOUND * added + np.spacing(np.abs(before)) + np.spacing(np.abs(wanted))
        assert (np.abs(found - wanted) <= room).all()


def test_adamw_is_its_formula_one_rounding_at_a_time() -> None:
    kernel = Adam(lr=1e-3, weight_decay=0.1, is_decoupled=True)
    value, gradient = np.array([0.7], np.float32), np.array([-0.3], np.float32)
    mean, square = np.array([0.2], np.float32), np.array([0.05], np.float32)
    f = np.float32
    v, g, m, s = value[0], gradient[0], mean[0], square[0]
    v = f(v * f(1 - 1e-3 * 0.1))
    m = f(m + f(f(g - m) * f(1 - 0.9)))
    s = f(f(s * f(0.999)) + f(f(g * f(1 - 0.999)) * g))
    root = f(f(np.sqrt(s) / f((1 - 0.999**3) ** 0.5)) + f(1e-8))
    v = f(v + f(f(m * f(-1e-3 / (1 - 0.9**3))) / root))
    kernel.step(value, gradient, [mean, square], 3)
    assert (value[0], mean[0], square[0]) == (v, m, s)


def test_what_is_not_a_number_stays_where_it_is() -> None:
    for kernel, _, _ in KERNELS.values():
        values, gradients = drawn(1)
        gradients[0, 5] = np.nan
        clean = stepped(kernel, values, np.nan_to_num(gradients), NUMEL)[0]
        found = stepped(kernel, values, gradients, NUMEL)[0]
        assert np.isnan(found[5])
        assert np.delete(found, 5).tobytes() == np.delete(clean, 5).tobytes()


def test_settings_that_mean_nothing_are_refused() -> None:
    for settings, name in (({"beta1": 1.0}, "beta1"), ({"lr": -1.0}, "lr"), ({"eps": float("nan")}, "eps")):
        with pytest.raises(ValueError, match=name):
            Adam(**settings)
    with pytest.raises(ValueError, match="nesterov"):
        Sgd(nesterov=True)
