"""What a mode keeps on an accelerator, by the formulas of live training and by the simulator's account of a GPU."""

import pytest

from coarse.hardware.models import uniform
from coarse.hardware.sharded_memory import ShardedTraining, StatesHeld, sharded_account
from coarse.parallel.sharded.modes import ShardedMode
from tests.support.volumes import TrainedShape, accelerator_nbytes

HELD = {
    ShardedMode.FSDP: StatesHeld.SHARDED,
    ShardedMode.HYBRID: StatesHeld.SUBGROUP,
    ShardedMode.ZEROPP: StatesHeld.SECONDARY,
    ShardedMode.FCDP: StatesHeld.SHARDED,
    ShardedMode.ODC: StatesHeld.SHARDED,
}


@pytest.mark.parametrize("mode", ShardedMode)
def test_both_say_the_same(mode):
    model = uniform(num_layers=4, parameters_per_layer=4096)
    training = ShardedTraining(model=model, num_gpus=16, num_nodes=2, held=HELD[mode])
    rows = {row.name: row.nbytes for row in sharded_account(training, 1).rows}
    whole = model.num_parameters * training.precision.itemsize
    shape = TrainedShape(
        num_nodes=2, num_workers=16, parameter_nbytes=whole, trainable_nbytes=whole, gradient_nbytes=whole
    )
    assert rows["parameters"] + rows.get("secondary shards", 0) == accelerator_nbytes(mode, shape)
