"""What importing the face does not do: it does not start MPI, for a rank that fails before init() must be able to say
so, and it does not import what only sharded models need."""

import subprocess
import sys


def test_importing_coarse_torch_starts_no_mpi_and_imports_what_shards_a_model_when_it_is_asked_for():
    program = """if True:
        import sys, torch
        import coarse.torch as ct
        assert "mpi4py.MPI" not in sys.modules, "MPI was started"
        ct.tensors.require_whole(torch.ones(2), "plain")
        assert set(ct.__all__) <= set(dir(ct)) and not hasattr(ct, "fully_shards")
        assert "torch.distributed.tensor" not in sys.modules
        from coarse.torch import *
        assert callable(fully_shard) and callable(release_caches) and TransferRecorder.__name__ == "TransferRecorder"
        assert "torch.distributed.tensor" in sys.modules
    """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
