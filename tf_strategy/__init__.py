"""coarse for TensorFlow: two lines turn a Keras script data-parallel.

from tf_strategy import CoarseStrategy
strategy = CoarseStrategy()          # in place of tf.distribute.MirroredStrategy()
with strategy.scope():
    model = ...; model.compile(...)
model.fit(dataset)                   # under mpirun, or coarse run
"""

from tf_strategy.failures import cause_of
from tf_strategy.strategy import CoarseStrategy

__all__ = ["CoarseStrategy", "cause_of"]
