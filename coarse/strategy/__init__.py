# Pure: no MPI, threads, clock or environment.
"""Strategies, the plans and rounds that they return, and the measurements that they decide by.

A strategy decides which ranks sum which gradients, where and when.
"""

from coarse.errors import ConfigError
from coarse.protocol.fields import Says
from coarse.protocol.plan import Block, Cluster, Facts, Plan, Tensor
from coarse.strategy.builtin import Allreduce, Auto, Coarse, Dense, Paper
from coarse.strategy.plans import central, on_each_node, ring_of_all
from coarse.strategy.rounds import By, Round, first_to_devices
from coarse.strategy.routing import ProxyProfile, RoutingTable
from coarse.strategy.sharding import Gather, Hybrid, Keeps, Sharding, Source, States, Use
from coarse.strategy.strategy import Access, Exchanges, StepTimes, Strategy, View
from coarse.strategy.wires import Cast, Feedback, Rows, TopK, Wire

__all__ = [
    "Access",
    "Allreduce",
    "Auto",
    "Block",
    "By",
    "Cast",
    "Cluster",
    "Coarse",
    "ConfigError",
    "Dense",
    "Exchanges",
    "Facts",
    "Feedback",
    "Gather",
    "Hybrid",
    "Keeps",
    "Paper",
    "Plan",
    "ProxyProfile",
    "Round",
    "RoutingTable",
    "Rows",
    "Says",
    "Sharding",
    "Source",
    "States",
    "StepTimes",
    "Strategy",
    "Tensor",
    "TopK",
    "Use",
    "View",
    "Wire",
    "central",
    "first_to_devices",
    "on_each_node",
    "ring_of_all",
]
