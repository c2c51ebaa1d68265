"""Which device a sharded model is on when its script names none."""

import torch

from coarse.torch.fsdp.mesh import default_device_type


def test_it_is_the_processor_where_torch_was_built_for_an_accelerator_that_is_not_here(monkeypatch):
    def built_for_cuda(check_available=False):
        return None if check_available else torch.device("cuda")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", built_for_cuda)
    assert default_device_type() == "cpu"


def test_it_is_the_accelerator_that_is_here(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
    assert default_device_type() == "cuda"
