"""Fluid's reader decorators, with its names and arguments, and those of sequences."""

from penstock.readers.decorators._ahead import buffered as buffered
from penstock.readers.decorators._ahead import cache as cache
from penstock.readers.decorators._ahead import xmap_readers as xmap_readers
from penstock.readers.decorators._fluid import batch as batch
from penstock.readers.decorators._fluid import chain as chain
from penstock.readers.decorators._fluid import compose as compose
from penstock.readers.decorators._fluid import firstn as firstn
from penstock.readers.decorators._fluid import map_readers as map_readers
from penstock.readers.decorators._fluid import shuffle as shuffle
from penstock.readers.decorators._sequences import batch_by_length as batch_by_length
from penstock.readers.decorators._sequences import learn_buckets as learn_buckets
from penstock.readers.decorators._sequences import pack as pack
