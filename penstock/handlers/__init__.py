"""Event handlers for every training run; so far `Progress`, which shows how it goes.

They know the events and nothing else of penstock. Give them to `Trainer.train` alone or in a list.
"""

from penstock.handlers.progress import Progress as Progress
