"""Fluid's reader decorators: readers in, a reader out, with Fluid's names and arguments."""

from penstock.readers.decorators._batching import batch as batch
from penstock.readers.decorators._batching import shuffle as shuffle
from penstock.readers.decorators._buffering import buffered as buffered
from penstock.readers.decorators._buffering import cache as cache
from penstock.readers.decorators._combining import chain as chain
from penstock.readers.decorators._combining import compose as compose
from penstock.readers.decorators._combining import firstn as firstn
from penstock.readers.decorators._combining import map_readers as map_readers
from penstock.readers.decorators._xmap import xmap_readers as xmap_readers
