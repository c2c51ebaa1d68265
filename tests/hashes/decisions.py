"""Prints what is decided for emulated runs before any of their ranks starts, as they are told it."""

import json
from itertools import product

from coarse.emulation.order import EmulationOrder
from coarse.protocol.config import POLICIES

PLACES = (("aws-p3", 1), ("aws-p3", 2), ("cxl-type3-asic", 1), ("sdsc-p100", 1))
"""Machine, and how many nodes of it."""
CASES = product(PLACES, ("resnet50", "bert-large"), POLICIES)


def main() -> None:
    """One line for each machine, model, number of nodes and policy."""
    for (machine, nodes), model, policy in CASES:
        order = EmulationOrder(
            machine=machine, model=model, gpu=None, batch=4, precision="fp32", mode="coarse", num_workers=2,
            num_devices=0, num_iterations=3, num_nodes=nodes, policy=policy,
        )  # fmt: skip
        print(json.dumps(told(order.decided())))


def told(order: EmulationOrder) -> dict[str, object]:
    """A decided order, its round as the number of gradients that go to devices."""
    keys = ("machine", "model", "gpu", "batch", "precision", "mode", "num_workers", "num_devices", "num_iterations")
    others = ("num_nodes", "collective", "hold_back", "degradations", "profile_every", "policy")
    asked: dict[str, object] = {key: getattr(order, key) for key in keys}
    asked |= {"dilation": 1.0, **{key: getattr(order, key) for key in others}}
    decided = {"num_proxy_gradients": order.num_to_devices, "tables": order.facts}
    return asked | decided | {"checked_pool": None, "num_gpus": 0}


if __name__ == "__main__":
    main()
