"""penstock: write the forward pass as a function; train, test and infer programs follow from it.

`Trainer(program_func, optimizer).train(reader, event_handler)` trains,
`Inferencer(infer_func, param_path).infer(feed)` answers, `ProgramBuilder` is for loops of one's
own.
"""

from typing import TYPE_CHECKING

from penstock._first_use import import_on_first_use as _import_on_first_use
from penstock._version import __version__ as __version__

if TYPE_CHECKING:
    from penstock import distributed as distributed
    from penstock import events as events
    from penstock import fluid as fluid
    from penstock import handlers as handlers
    from penstock import inference_model as inference_model
    from penstock import inferencer as inferencer
    from penstock import layers as layers
    from penstock import metrics as metrics
    from penstock import models as models
    from penstock import onnx_export as onnx_export
    from penstock import optimizers as optimizers
    from penstock import preprocessing as preprocessing
    from penstock import program_builder as program_builder
    from penstock import readers as readers
    from penstock import serving as serving
    from penstock import sklearn as sklearn
    from penstock import tensorflow_export as tensorflow_export
    from penstock import trainer as trainer
    from penstock._checkpoint import CheckpointConfig as CheckpointConfig
    from penstock._compile_cache import use_compile_cache as use_compile_cache
    from penstock._errors import CheckpointError as CheckpointError
    from penstock._errors import ExportError as ExportError
    from penstock._errors import FeedError as FeedError
    from penstock._errors import FolderInUseError as FolderInUseError
    from penstock._errors import LayerContextError as LayerContextError
    from penstock._errors import ModelFileError as ModelFileError
    from penstock._errors import NonFiniteError as NonFiniteError
    from penstock._errors import ParameterError as ParameterError
    from penstock._errors import PeerError as PeerError
    from penstock._errors import ProgramError as ProgramError
    from penstock._errors import ReaderError as ReaderError
    from penstock._errors import UnknownNameError as UnknownNameError
    from penstock._mesh import mesh as mesh
    from penstock._parameters import Parameters as Parameters
    from penstock._program.sequences import NestedSequence as NestedSequence
    from penstock._program.sequences import Sequence as Sequence
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
    from penstock.inference_model import InferenceModel as InferenceModel
    from penstock.inferencer import Inferencer as Inferencer
    from penstock.program_builder import Objective as Objective
    from penstock.program_builder import Plan as Plan
    from penstock.program_builder import Precision as Precision
    from penstock.program_builder import ProgramBuilder as ProgramBuilder
    from penstock.program_builder import State as State
    from penstock.program_builder import plan as plan
    from penstock.trainer import Trainer as Trainer

# Everything loads when it is first used: `penstock --help`, an interrupt in the first seconds of a
# command and the processes that decode records need no JAX, which takes 1.5 s to import.
# tests/test_dependencies.py compares the names with those above.
_PACKAGES = (
    *("distributed", "events", "fluid", "handlers", "inference_model", "inferencer", "layers"),
    *("metrics", "models", "onnx_export", "optimizers", "preprocessing", "program_builder"),
    *("readers", "serving", "sklearn", "tensorflow_export", "trainer"),
)
_NAMES = {
    "_checkpoint": ("CheckpointConfig",),
    "_compile_cache": ("use_compile_cache",),
    "_errors": (
        *("CheckpointError", "ExportError", "FeedError", "FolderInUseError", "LayerContextError"),
        *("ModelFileError", "NonFiniteError", "ParameterError", "PeerError", "ProgramError"),
        *("ReaderError", "UnknownNameError"),
    ),
    "_mesh": ("mesh",),
    "_parameters": ("Parameters",),
    "_program.sequences": ("NestedSequence", "Sequence"),
    "events": (
        *("BeginEpoch", "BeginEpochEvent", "BeginStep", "BeginStepEvent", "BeginTraining"),
        *("EndEpoch", "EndEpochEvent", "EndStep", "EndStepEvent", "EndTraining"),
    ),
    "inference_model": ("InferenceModel",),
    "inferencer": ("Inferencer",),
    "program_builder": ("Objective", "Plan", "Precision", "ProgramBuilder", "State", "plan"),
    "trainer": ("Trainer",),
}
_MODULE_OF = {name: f"penstock.{name}" for name in _PACKAGES} | {
    name: f"penstock.{module}" for module, names in _NAMES.items() for name in names
}
__getattr__, __dir__ = _import_on_first_use(__name__, _MODULE_OF)
