"""`Trainer`: the training loop, its events, and the parameters it trains."""

from penstock.trainer._trainer import Trainer as Trainer

__all__ = ["Trainer"]
