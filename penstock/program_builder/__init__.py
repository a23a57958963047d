"""Program functions become programs; see `ProgramBuilder`."""

from penstock._program.precision import ParameterSharding as ParameterSharding
from penstock._program.precision import Precision as Precision
from penstock._program.precision import PrecisionName as PrecisionName
from penstock.program_builder._builder import ProgramBuilder as ProgramBuilder
from penstock.program_builder._inspect import Inspection as Inspection
from penstock.program_builder._inspect import ParameterRow as ParameterRow
from penstock.program_builder._objective import Objective as Objective
from penstock.program_builder._objective import Optimizer as Optimizer
from penstock.program_builder._objective import State as State

__all__ = [
    "Inspection",
    "Objective",
    "Optimizer",
    "ParameterRow",
    "Precision",
    "PrecisionName",
    "ProgramBuilder",
    "State",
]
