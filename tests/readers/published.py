"""Whole splits and record files."""

from penstock import readers
from penstock.readers.records import RecordFiles, RecordFormat


def whole(name, split="train", **options):
    """Return a whole split as one batch."""
    (batch,) = readers.dataset(name, split, 10**6, **options)()
    return batch


def read_records(paths, **options):
    """Return the payloads of record files, or what is wrong with them."""
    files = RecordFiles(paths, RecordFormat(**options))
    try:
        return list(files.read(range(len(files))))
    finally:
        files.close()
