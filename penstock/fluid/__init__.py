"""penstock under the conventions of PaddlePaddle Fluid, for scripts and people that come from it.

`import penstock.fluid as fluid` in place of `import paddle.fluid as fluid`, and a script in the
syntax of Fluid's high-level interface runs. The classes are penstock's own; what differs from
`penstock` is where Fluid has another default:

- images are channels first (NCHW) in `fluid.layers` and `fluid.nets`;
- `dropout` scales in test and infer (`downgrade_in_infer`);
- optimizers are `fluid.optimizer.SGD(learning_rate=...)` and so on, optax underneath;
- places are `fluid.CPUPlace()` and `fluid.CUDAPlace(0)`, one device each.

What Fluid had and penstock has in another form: sequences are padded arrays beside their lengths
(no LoD), arithmetic is `jax.numpy` (no `elementwise_add`), data come from `penstock.readers`.
"""

from penstock.events import BeginEpochEvent as BeginEpochEvent
from penstock.events import BeginStepEvent as BeginStepEvent
from penstock.events import EndEpochEvent as EndEpochEvent
from penstock.events import EndStepEvent as EndStepEvent
from penstock.fluid import initializer as initializer
from penstock.fluid import layers as layers
from penstock.fluid import nets as nets
from penstock.fluid import optimizer as optimizer
from penstock.fluid import regularizer as regularizer
from penstock.fluid._param_attr import ParamAttr as ParamAttr
from penstock.fluid._places import CPUPlace as CPUPlace
from penstock.fluid._places import CUDAPlace as CUDAPlace
from penstock.inferencer import Inferencer as Inferencer
from penstock.trainer import Trainer as Trainer
