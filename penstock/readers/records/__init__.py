"""Record files: TFRecord and OFRecord, random access, verified, without TensorFlow.

`readers.tfrecord` and `readers.ofrecord` read batches. This package has what declares their
contents (feature specs, blobs, codecs, preprocessors), their errors, and the writers.
"""

from penstock._image_resizing import encode_png as encode_png
from penstock.readers._errors import FeatureError as FeatureError
from penstock.readers._errors import RecordError as RecordError
from penstock.readers._read_options import ReadOptions as ReadOptions
from penstock.readers.records.blobs import BlobConf as BlobConf
from penstock.readers.records.blobs import BytesListCodec as BytesListCodec
from penstock.readers.records.blobs import (
    ImageCenterCropPreprocessor as ImageCenterCropPreprocessor,
)
from penstock.readers.records.blobs import ImageCodec as ImageCodec
from penstock.readers.records.blobs import ImageCropPreprocessor as ImageCropPreprocessor
from penstock.readers.records.blobs import ImagePreprocessor as ImagePreprocessor
from penstock.readers.records.blobs import (
    ImageRandomSizeCropPreprocessor as ImageRandomSizeCropPreprocessor,
)
from penstock.readers.records.blobs import ImageResizePreprocessor as ImageResizePreprocessor
from penstock.readers.records.blobs import NormByChannelPreprocessor as NormByChannelPreprocessor
from penstock.readers.records.blobs import RawCodec as RawCodec
from penstock.readers.records.blobs import build_ofrecord as build_ofrecord
from penstock.readers.records.blobs import parse_ofrecord as parse_ofrecord
from penstock.readers.records.cache import RecordFormat as RecordFormat
from penstock.readers.records.features import FixedLenFeature as FixedLenFeature
from penstock.readers.records.features import ImageFeature as ImageFeature
from penstock.readers.records.features import SequenceFeature as SequenceFeature
from penstock.readers.records.features import VarLenFeature as VarLenFeature
from penstock.readers.records.features import build_example as build_example
from penstock.readers.records.features import build_sequence_example as build_sequence_example
from penstock.readers.records.features import parse_example as parse_example
from penstock.readers.records.files import RecordFiles as RecordFiles
from penstock.readers.records.files import RecordReader as RecordReader
from penstock.readers.records.framing import OFRECORD as OFRECORD
from penstock.readers.records.framing import TFRECORD as TFRECORD
from penstock.readers.records.framing import FramingError as FramingError
from penstock.readers.records.framing import RecordWriter as RecordWriter
from penstock.readers.records.image_decoding import ImageError as ImageError
from penstock.readers.records.image_decoding import decode_image as decode_image
