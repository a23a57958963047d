"""penstock: write the forward pass as a function; train, test and infer programs follow from it.

`Trainer(program_func, optimizer).train(reader, event_handler)` trains,
`Inferencer(infer_func, param_path).infer(feed)` answers, `ProgramBuilder` is for loops of one's
own.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from penstock import events as events
from penstock import handlers as handlers
from penstock import layers as layers
from penstock import optimizers as optimizers
from penstock import readers as readers
from penstock._checkpoint import CheckpointConfig as CheckpointConfig
from penstock._errors import CheckpointError as CheckpointError
from penstock._errors import FeedError as FeedError
from penstock._errors import FolderInUseError as FolderInUseError
from penstock._errors import LayerContextError as LayerContextError
from penstock._errors import NonFiniteError as NonFiniteError
from penstock._errors import ParameterError as ParameterError
from penstock._errors import ProgramError as ProgramError
from penstock._errors import ReaderError as ReaderError
from penstock._errors import UnknownNameError as UnknownNameError
from penstock._parameters import Parameters as Parameters
from penstock._version import __version__ as __version__
from penstock.events import BeginEpoch as BeginEpoch
from penstock.events import BeginEpochEvent as BeginEpochEvent
from penstock.events import BeginStep as BeginStep
from penstock.events import BeginStepEvent as BeginStepEvent
from penstock.events import BeginTraining as BeginTraining
from penstock.events import EndEpoch as EndEpoch
from penstock.events import EndEpochEvent as EndEpochEvent
from penstock.events import EndStep as EndStep
from penstock.events import EndStepEvent as EndStepEvent
from penstock.events import EndTraining as EndTraining
from penstock.inferencer import Inferencer as Inferencer
from penstock.program_builder import Objective as Objective
from penstock.program_builder import Precision as Precision
from penstock.program_builder import ProgramBuilder as ProgramBuilder
from penstock.program_builder import State as State
from penstock.trainer import Trainer as Trainer

if TYPE_CHECKING:
    from penstock import fluid as fluid
    from penstock import models as models
    from penstock import preprocessing as preprocessing

# The library on top of the core loads when it is asked for: it would add a third to what
# `import penstock` costs beyond JAX, flax and optax.
_ON_FIRST_USE = ("fluid", "models", "preprocessing")


def __getattr__(name: str) -> ModuleType:
    """Import a package that is asked for the first time (PEP 562)."""
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    """Name what is imported and what would be."""
    return sorted({*globals(), *_ON_FIRST_USE})
