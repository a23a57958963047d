"""Conversion of data sets to record files: TF-Slim's, image folders, and between the formats."""

from penstock.readers._errors import ArchiveError as ArchiveError
from penstock.readers._errors import UnsafeArchiveError as UnsafeArchiveError
from penstock.readers.convert.download import DownloadError as DownloadError
from penstock.readers.convert.download import RemoteFile as RemoteFile
from penstock.readers.convert.download import fetch as fetch
from penstock.readers.convert.file_set import ArgumentError as ArgumentError
from penstock.readers.convert.file_set import ConversionError as ConversionError
from penstock.readers.convert.file_set import StaleFilesError as StaleFilesError
from penstock.readers.convert.formats import SLIM_TO_ONEFLOW as SLIM_TO_ONEFLOW
from penstock.readers.convert.formats import ofrecord_to_tfrecord as ofrecord_to_tfrecord
from penstock.readers.convert.formats import tfrecord_to_ofrecord as tfrecord_to_ofrecord
from penstock.readers.convert.image_folder import FLOWERS as FLOWERS
from penstock.readers.convert.image_folder import convert_flowers as convert_flowers
from penstock.readers.convert.image_folder import convert_image_folder as convert_image_folder
from penstock.readers.convert.slim import CIFAR10 as CIFAR10
from penstock.readers.convert.slim import MNIST as MNIST
from penstock.readers.convert.slim import convert_cifar10 as convert_cifar10
from penstock.readers.convert.slim import convert_mnist as convert_mnist
from penstock.readers.convert.slim import read_labels as read_labels
