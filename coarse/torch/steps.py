"""Ends of optimizers' steps, by which an emulated job tells iterations apart."""

from weakref import WeakKeyDictionary

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from coarse.client.link import DeviceLink

_numbers: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
_told: WeakKeyDictionary[DeviceLink, bool] = WeakKeyDictionary()


def tell_of_steps(link: DeviceLink) -> None:
    """Tell an emulated job of each step of any optimizer from now on; do nothing in a live one."""
    if link.point is None or link in _told:
        return
    _told[link] = True
    point = link.point

    def on_step(optimizer: Optimizer, _args: object, _options: object) -> None:
        number = _numbers.setdefault(optimizer, len(_numbers))
        point("step" if number == 0 else f"step {number}")

    register_optimizer_step_post_hook(on_step)
