"""`fluid.contrib.trainer`: scripts of August 2018 import `Trainer` and the events from it."""

from penstock.fluid.trainer import BeginEpochEvent as BeginEpochEvent
from penstock.fluid.trainer import BeginStepEvent as BeginStepEvent
from penstock.fluid.trainer import CheckpointConfig as CheckpointConfig
from penstock.fluid.trainer import EndEpochEvent as EndEpochEvent
from penstock.fluid.trainer import EndStepEvent as EndStepEvent
from penstock.fluid.trainer import Trainer as Trainer
