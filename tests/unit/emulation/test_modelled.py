"""The endpoints of a machine that play an emulated job's ranks: chosen, or named."""

import pytest

from coarse.emulation.modelled import modelled_cluster
from coarse.errors import ConfigError
from coarse.hardware.presets import load_preset
from coarse.protocol.config import Config, EmulateSettings
from coarse.strategy.builtin import Coarse


def cluster(machine="cxl-cz120", workers=2, devices=2, **settings):
    return modelled_cluster(
        load_preset(machine), EmulateSettings(machine=machine, **settings), workers, devices, Config(), Coarse()
    )


def test_named_endpoints_are_taken_in_their_order_and_each_worker_has_the_nearest_device():
    places = cluster("fcdp-a40-rdma", 3, 2, nodes=2, places="gpu9, gpu0,gpu12 : gpu2,gpu13").places
    assert places.workers == ("gpu9", "gpu0", "gpu12")
    assert places.devices == ("gpu2", "gpu13")
    assert places.local_devices == (1, 0, 1)


def test_without_names_places_are_those_of_predictions():
    assert cluster().places.workers == ("gpu0", "gpu1")
    assert cluster(places="gpu3,gpu2:memory1,memory0").placement.local_proxies == (0, 1)


@pytest.mark.parametrize(("machine", "settings", "said"), [
    ("cxl-cz120", {"places": "gpu9,gpu1:memory0,memory1"}, "'gpu9' is no endpoint of cxl-cz120, .* nearest: gpu"),
    ("cxl-cz120", {"places": "gpu0,gpu0:memory0,memory1"}, "gpu0 is named twice"),
    ("cxl-cz120", {"places": "gpu0,memory2:memory0,memory1"}, "workers are GPUs, got memory2"),
    ("cxl-cz120", {"places": "gpu0,gpu1"}, "must be workers' endpoints, a colon"),
    ("cxl-cz120", {"places": "gpu0:memory0,memory1"}, "names 1 workers, and the job has 2"),
    ("fcdp-a40-rdma", {"places": "gpu0,gpu8:gpu1,gpu2", "nodes": 2}, "the node of gpu8 has no memory device"),
    ("cxl-cz120", {"nodes": 2}, "cxl-cz120 has no network between nodes, and 2 nodes are asked for; state"),
    ("cxl-cz120", {"workers": 8}, "a node of cxl-cz120 has .* too few for 8 workers"),
])  # fmt: skip
def test_a_job_that_has_no_place_is_refused(machine, settings, said):
    with pytest.raises(ConfigError, match=said):
        cluster(machine, **settings)
