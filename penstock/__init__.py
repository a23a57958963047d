"""penstock: write the forward pass as a function; train, test and infer programs follow from it.

`Trainer(program_func, optimizer).train(reader, event_handler)` trains,
`Inferencer(infer_func, param_path).infer(feed)` answers, `ProgramBuilder` is for loops of one's
own.
"""

from penstock import events as events
from penstock import handlers as handlers
from penstock import layers as layers
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
