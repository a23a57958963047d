"""The archives and files of data sets, as they were published: read within bounds or refused.

The named sets and `convert` read through here, so that the same damage gives the same error: an
`ArchiveError` that names the file, the member, and what to do.
"""

from penstock.readers._archives.image_files import CIFAR10_LIMITS as CIFAR10_LIMITS
from penstock.readers._archives.image_files import CIFAR100_LIMITS as CIFAR100_LIMITS
from penstock.readers._archives.image_files import cifar_records as cifar_records
from penstock.readers._archives.image_files import read_mnist as read_mnist
from penstock.readers._archives.members import read_files as read_files
from penstock.readers._archives.members import read_named as read_named
from penstock.readers._archives.members import unpack as unpack
from penstock.readers._archives.pieces import Limits as Limits
from penstock.readers._archives.pieces import Piece as Piece
from penstock.readers._archives.pieces import gunzip as gunzip
from penstock.readers._archives.pieces import read_file as read_file
