"""The archives and files of data sets, as they were published: read within bounds or refused.

The named sets and `convert` read through here, so that the same damage gives the same error: an
`ArchiveError` that names the file, the member, and what to do.
"""

from penstock.readers._archives.files import CIFAR10_LIMITS as CIFAR10_LIMITS
from penstock.readers._archives.files import CIFAR100_LIMITS as CIFAR100_LIMITS
from penstock.readers._archives.files import FileContent as FileContent
from penstock.readers._archives.files import Limits as Limits
from penstock.readers._archives.files import gunzip as gunzip
from penstock.readers._archives.files import read_cifar_records as read_cifar_records
from penstock.readers._archives.files import read_file as read_file
from penstock.readers._archives.files import read_mnist as read_mnist
from penstock.readers._archives.members import read_by_name as read_by_name
from penstock.readers._archives.members import read_files as read_files
from penstock.readers._archives.members import unpack as unpack
