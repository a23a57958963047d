"""Program functions become programs; see `ProgramBuilder`."""

from penstock._program.precision import ParameterSharding as ParameterSharding
from penstock._program.precision import Precision as Precision
from penstock._program.precision import PrecisionName as PrecisionName
from penstock.program_builder._builder import ProgramBuilder as ProgramBuilder
from penstock.program_builder._inspect import Inspection as Inspection
from penstock.program_builder._inspect import ParameterRow as ParameterRow
from penstock.program_builder._objective import Objective as Objective
from penstock.program_builder._objective import Optimizer as Optimizer
from penstock.program_builder._plan import Collective as Collective
from penstock.program_builder._plan import Plan as Plan
from penstock.program_builder._plan import Rates as Rates
from penstock.program_builder._plan import describe_devices as describe_devices
from penstock.program_builder._plan import find_largest_batch as find_largest_batch
from penstock.program_builder._plan import plan as plan
from penstock.program_builder._step import State as State

__all__ = [
    "Collective",
    "Inspection",
    "Objective",
    "Optimizer",
    "ParameterRow",
    "Plan",
    "Precision",
    "PrecisionName",
    "ProgramBuilder",
    "Rates",
    "State",
    "describe_devices",
    "find_largest_batch",
    "plan",
]
