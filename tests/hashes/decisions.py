"""Prints what is decided for emulated runs before any of their ranks starts, as they are told it."""

from itertools import product

from coarse.emulation.order import RunOrder, order_json
from coarse.simulation.scenario import Policy

PLACES = (("aws-p3", 1), ("aws-p3", 2), ("cxl-type3-asic", 1), ("sdsc-p100", 1))
"""Machine, and how many nodes of it."""
CASES = product(PLACES, ("resnet50", "bert-large"), Policy)


def main() -> None:
    """One line for each machine, model, number of nodes and policy."""
    for (machine, nodes), model, policy in CASES:
        order = RunOrder(
            machine=machine, model=model, gpu=None, batch=4, precision="fp32", mode="coarse", num_workers=2,
            num_devices=0, num_iterations=3, dilation=1.0, num_nodes=nodes,
        )  # fmt: skip
        print(order_json(order.decided(policy)))


if __name__ == "__main__":
    main()
