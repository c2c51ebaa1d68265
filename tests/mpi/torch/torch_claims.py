"""Checks the claims of several modules in one job: `torch_claims.py FOLDER SPLIT MODULE...`, a split of "" for none."""

import sys
from importlib import import_module

import coarse
from tests.support.claims import report_claims

NAMES = {
    "tensors": "tests.mpi.torch.tensor_claims",
    "optimizer": "tests.mpi.torch.optimizer_claims",
    "sparse_gradients": "tests.mpi.torch.sparse_gradient_claims",
    "ecosystem": "tests.mpi.torch.ecosystem_claims",
    "allreduce": "tests.mpi.torch.allreduce_claims",
    "collectives": "tests.mpi.torch.collective_claims",
    "horovod_optimizer": "tests.mpi.torch.horovod_optimizer_claims",
}
"""The modules that may be named."""


def main(folder: str, split: str, *names: str) -> None:
    """Report every claim of the modules, and then how a job ends beneath a model that goes on."""
    coarse.init()  # memory devices stay in here, and import no torch
    from tests.mpi.torch import ecosystem_claims, forced_split

    forced_split.force_split(split)
    modules = [import_module(NAMES[name]) for name in names]
    report_claims([claim for module in modules for claim in module.CLAIMS], folder)
    ecosystem_claims.gradients_outlive_the_optimizer_and_the_job()  # shuts down, so its status alone tells


if __name__ == "__main__":
    main(*sys.argv[1:])
