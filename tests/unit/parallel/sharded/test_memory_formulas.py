"""What a mode keeps on an accelerator, by the formulas of live training and by the simulator's account of a GPU."""

import pytest

from coarse.hardware.models import uniform
from coarse.hardware.sharded_memory import ShardedTraining, sharded_account
from coarse.strategy.sharding import LIVE, SHARDINGS
from tests.support.volumes import TrainedShape, accelerator_nbytes


@pytest.mark.parametrize("mode", LIVE)
def test_both_say_the_same(mode):
    model = uniform(num_layers=4, parameters_per_layer=4096)
    training = ShardedTraining(model=model, num_gpus=16, num_nodes=2, held=SHARDINGS[mode].states)
    rows = {row.name: row.nbytes for row in sharded_account(training, 1).rows}
    whole = model.num_parameters * training.precision.itemsize
    shape = TrainedShape(
        num_nodes=2, num_workers=16, parameter_nbytes=whole, trainable_nbytes=whole, gradient_nbytes=whole
    )
    assert rows["parameters"] + rows.get("secondary shards", 0) == accelerator_nbytes(mode, shape)
