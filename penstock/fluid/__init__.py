"""penstock with the conventions of PaddlePaddle Fluid, for scripts written for it.

With `import penstock.fluid as fluid` instead of `import paddle.fluid as fluid`, a script that uses
Fluid's high-level interface runs, in the syntax of its last release (August 2018) or of the draft
before it. It differs from `penstock` where Fluid has other defaults:

- `event.metrics`, `trainer.test` and `inferencer.infer` are lists of arrays, even of one value;
- the order is `trainer.train(num_epochs, event_handler, reader, feed_order)`;
- without `parallel=True` one device is used;
- images are channels first (NCHW) in `fluid.layers` and `fluid.nets`;
- `dropout` scales in test and infer (`downgrade_in_infer`);
- optimizers are `fluid.optimizer.SGD(learning_rate=...)` and so on, optax underneath;
- places are `fluid.CPUPlace()` and `fluid.CUDAPlace(0)`, one device each;
- what `infer` returns for a sequence is the words of all examples end to end, with
  `recursive_sequence_lengths()`.

Some things have another form. Sequences are `ps.Sequence`s, or `ps.NestedSequence`s with two levels
of lengths. In place of while loops over arrays of variables, `penstock.layers.beam_decode` searches
for a sentence, and a `DynamicRNN` does the rest. Data comes from `penstock.readers`, which has
`batch`, `shuffle` and the other decorators.
"""

from penstock.fluid import contrib as contrib
from penstock.fluid import core as core
from penstock.fluid import initializer as initializer
from penstock.fluid import layers as layers
from penstock.fluid import nets as nets
from penstock.fluid import optimizer as optimizer
from penstock.fluid import regularizer as regularizer
from penstock.fluid._lod_tensors import create_lod_tensor as create_lod_tensor
from penstock.fluid._lod_tensors import create_random_int_lodtensor as create_random_int_lodtensor
from penstock.fluid.core import CPUPlace as CPUPlace
from penstock.fluid.core import CUDAPlace as CUDAPlace
from penstock.fluid.inferencer import Inferencer as Inferencer
from penstock.fluid.trainer import BeginEpochEvent as BeginEpochEvent
from penstock.fluid.trainer import BeginStepEvent as BeginStepEvent
from penstock.fluid.trainer import CheckpointConfig as CheckpointConfig
from penstock.fluid.trainer import EndEpochEvent as EndEpochEvent
from penstock.fluid.trainer import EndStepEvent as EndStepEvent
from penstock.fluid.trainer import Trainer as Trainer
from penstock.layers import ParamAttr as ParamAttr
