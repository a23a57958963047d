"""Readers: what yields samples or batches, more than once.

In memory `arrays`, by index `indexed`, by name `dataset`, folders of images `image_folder`,
`tfds`, Fluid's decorators `batch shuffle map_readers xmap_readers buffered chain compose firstn
cache`, and `of` for the readers of others. A `Shard` says which part a process reads. The contract
is in `penstock.readers._contract`.
"""

from penstock.readers._contract import Reader as Reader
from penstock.readers._contract import ReaderIterator as ReaderIterator
from penstock.readers._errors import ComposeNotAligned as ComposeNotAligned
from penstock.readers._errors import DatasetNotFoundError as DatasetNotFoundError
from penstock.readers._errors import ReaderExhaustedError as ReaderExhaustedError
from penstock.readers._errors import ReaderStateError as ReaderStateError
from penstock.readers._errors import ShardError as ShardError
from penstock.readers._foreign import of as of
from penstock.readers.datasets import DatasetRequest as DatasetRequest
from penstock.readers.datasets import RecordSet as RecordSet
from penstock.readers.datasets import dataset as dataset
from penstock.readers.datasets import dataset_names as dataset_names
from penstock.readers.datasets import dataset_splits as dataset_splits
from penstock.readers.datasets import register_dataset as register_dataset
from penstock.readers.decorators import batch as batch
from penstock.readers.decorators import buffered as buffered
from penstock.readers.decorators import cache as cache
from penstock.readers.decorators import chain as chain
from penstock.readers.decorators import compose as compose
from penstock.readers.decorators import firstn as firstn
from penstock.readers.decorators import map_readers as map_readers
from penstock.readers.decorators import shuffle as shuffle
from penstock.readers.decorators import xmap_readers as xmap_readers
from penstock.readers.images import ImageFolder as ImageFolder
from penstock.readers.images import image_folder as image_folder
from penstock.readers.in_memory import arrays as arrays
from penstock.readers.random_access import indexed as indexed
from penstock.readers.sharding import PerDevice as PerDevice
from penstock.readers.sharding import Shard as Shard
from penstock.readers.tfds_sets import tfds as tfds
