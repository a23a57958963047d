"""`fluid.contrib`: where Fluid 1.0 kept `Trainer` and `Inferencer`; the same as in `fluid`."""

from penstock.fluid.inferencer import Inferencer as Inferencer
from penstock.fluid.trainer import BeginEpochEvent as BeginEpochEvent
from penstock.fluid.trainer import BeginStepEvent as BeginStepEvent
from penstock.fluid.trainer import CheckpointConfig as CheckpointConfig
from penstock.fluid.trainer import EndEpochEvent as EndEpochEvent
from penstock.fluid.trainer import EndStepEvent as EndStepEvent
from penstock.fluid.trainer import Trainer as Trainer
