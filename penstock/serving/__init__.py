"""Models served over HTTP by the V2 Open Inference Protocol; `penstock serve` runs it."""

from penstock.serving._app import App as App
from penstock.serving._queue import Limits as Limits
