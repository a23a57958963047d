"""Whole splits, and record files written and read."""

from penstock import readers
from penstock.readers.records import RecordFiles, RecordFormat, RecordWriter, build_example


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


def write_records(path, payloads, **options):
    """Write a record file; return its path."""
    with RecordWriter(path, **options) as writer:
        for payload in payloads:
            writer.write(payload)
    return writer.path


def write_examples(path, examples):
    """Write a TFRecord file of dicts of features; return its path."""
    return write_records(path, map(build_example, examples))
