"""Checkpoints: everything a training run needs to go on as if nothing had happened."""

from penstock._checkpoint._config import CheckpointConfig as CheckpointConfig
from penstock._checkpoint._config import as_config as as_config
from penstock._checkpoint._contents import Contents as Contents
from penstock._checkpoint._contents import Position as Position
from penstock._checkpoint._contents import check_fits as check_fits
from penstock._checkpoint._contents import fetch_leaves as fetch_leaves
from penstock._checkpoint._store import Store as Store
from penstock._checkpoint._store import is_step as is_step
from penstock._checkpoint._writer import Writer as Writer
