"""`fluid.contrib.inferencer`: scripts of August 2018 import `Inferencer` from it."""

from penstock.fluid.inferencer import Inferencer as Inferencer
