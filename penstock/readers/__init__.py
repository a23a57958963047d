"""Readers: they yield samples or batches, and can be read more than once.

- data: `arrays` in memory, `indexed` for random access, `image_folder`, `dataset` and `tfds` by
  name, `tfrecord` and `ofrecord` for record files, and `of` for the loaders of other libraries;
- Fluid's decorators: `batch shuffle map_readers xmap_readers buffered chain compose firstn cache`;
- parts: `split folds`;
- sequences: `batch_by_length learn_buckets pack`.

Each of several joined processes reads its own part, or that of a `Shard`. `convert` writes record
files. `penstock docs readers` is the guide; `penstock.readers._contract` defines what a reader is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._first_use import import_on_first_use as _import_on_first_use
from penstock.readers._contract import Reader as Reader
from penstock.readers._contract import ReaderIterator as ReaderIterator
from penstock.readers._errors import ArchiveError as ArchiveError
from penstock.readers._errors import ComposeNotAligned as ComposeNotAligned
from penstock.readers._errors import DatasetNotFoundError as DatasetNotFoundError
from penstock.readers._errors import ReaderExhaustedError as ReaderExhaustedError
from penstock.readers._errors import ReaderStateError as ReaderStateError
from penstock.readers._errors import ShardError as ShardError
from penstock.readers._foreign import of as of
from penstock.readers.decorators import batch as batch
from penstock.readers.decorators import batch_by_length as batch_by_length
from penstock.readers.decorators import buffered as buffered
from penstock.readers.decorators import cache as cache
from penstock.readers.decorators import chain as chain
from penstock.readers.decorators import compose as compose
from penstock.readers.decorators import firstn as firstn
from penstock.readers.decorators import learn_buckets as learn_buckets
from penstock.readers.decorators import map_readers as map_readers
from penstock.readers.decorators import pack as pack
from penstock.readers.decorators import shuffle as shuffle
from penstock.readers.decorators import xmap_readers as xmap_readers
from penstock.readers.in_memory import arrays as arrays
from penstock.readers.sharding import PerDevice as PerDevice
from penstock.readers.sharding import Shard as Shard

if TYPE_CHECKING:
    from penstock.readers import convert as convert
    from penstock.readers import records as records
    from penstock.readers._batching import Padding as Padding
    from penstock.readers.datasets import DatasetRequest as DatasetRequest
    from penstock.readers.datasets import RecordSet as RecordSet
    from penstock.readers.datasets import dataset as dataset
    from penstock.readers.datasets import dataset_names as dataset_names
    from penstock.readers.datasets import dataset_splits as dataset_splits
    from penstock.readers.datasets import register_dataset as register_dataset
    from penstock.readers.images import ImageFolder as ImageFolder
    from penstock.readers.images import image_folder as image_folder
    from penstock.readers.ofrecord_files import ofrecord as ofrecord
    from penstock.readers.random_access import indexed as indexed
    from penstock.readers.records import OFRECORD as OFRECORD
    from penstock.readers.records import TFRECORD as TFRECORD
    from penstock.readers.records import BlobConf as BlobConf
    from penstock.readers.records import BytesListCodec as BytesListCodec
    from penstock.readers.records import FixedLenFeature as FixedLenFeature
    from penstock.readers.records import ImageCenterCropPreprocessor as ImageCenterCropPreprocessor
    from penstock.readers.records import ImageCodec as ImageCodec
    from penstock.readers.records import ImageCropPreprocessor as ImageCropPreprocessor
    from penstock.readers.records import ImageFeature as ImageFeature
    from penstock.readers.records import ImagePreprocessor as ImagePreprocessor
    from penstock.readers.records import (
        ImageRandomSizeCropPreprocessor as ImageRandomSizeCropPreprocessor,
    )
    from penstock.readers.records import ImageResizePreprocessor as ImageResizePreprocessor
    from penstock.readers.records import NormByChannelPreprocessor as NormByChannelPreprocessor
    from penstock.readers.records import RawCodec as RawCodec
    from penstock.readers.records import RecordError as RecordError
    from penstock.readers.records import RecordWriter as RecordWriter
    from penstock.readers.records import SequenceFeature as SequenceFeature
    from penstock.readers.records import VarLenFeature as VarLenFeature
    from penstock.readers.records import build_example as build_example
    from penstock.readers.records import build_ofrecord as build_ofrecord
    from penstock.readers.records import build_sequence_example as build_sequence_example
    from penstock.readers.records import parse_example as parse_example
    from penstock.readers.records import parse_ofrecord as parse_ofrecord
    from penstock.readers.splitting import folds as folds
    from penstock.readers.splitting import split as split
    from penstock.readers.tfds_sets import tfds as tfds
    from penstock.readers.tfrecord_files import tfrecord as tfrecord

# What most runs do not read from loads on first use: together it costs 20 ms, a third of
# `import penstock` beyond JAX's own. tests/readers/test_exports.py compares it with the above.
_MODULES = {
    "_batching": ("Padding",),
    "convert": ("convert",),
    "datasets": (
        *("DatasetRequest", "RecordSet", "dataset", "dataset_names", "dataset_splits"),
        "register_dataset",
    ),
    "images": ("ImageFolder", "image_folder"),
    "ofrecord_files": ("ofrecord",),
    "random_access": ("indexed",),
    "records": (
        *("records", "OFRECORD", "TFRECORD", "RecordError", "RecordWriter"),
        *("FixedLenFeature", "ImageFeature", "VarLenFeature", "build_example", "parse_example"),
        *("BlobConf", "BytesListCodec", "ImageCodec", "RawCodec", "build_ofrecord"),
        *("parse_ofrecord", "ImageCenterCropPreprocessor", "ImageCropPreprocessor"),
        *("ImagePreprocessor", "ImageRandomSizeCropPreprocessor", "ImageResizePreprocessor"),
        *("NormByChannelPreprocessor", "SequenceFeature", "build_sequence_example"),
    ),
    "splitting": ("folds", "split"),
    "tfds_sets": ("tfds",),
    "tfrecord_files": ("tfrecord",),
}
_MODULE_OF = {
    name: f"penstock.readers.{module}" for module, names in _MODULES.items() for name in names
}
__getattr__, __dir__ = _import_on_first_use(__name__, _MODULE_OF)
