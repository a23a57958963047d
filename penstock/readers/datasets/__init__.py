"""Named data sets behind one function: `readers.dataset("digits", split="train")`.

| name | sample | from |
|---|---|---|
| digits | image [8, 8, 1] float32 in 0..1, label | scikit-learn, real |
| wine, breast_cancer | x [13], [30] standardised float32, label | scikit-learn, real |
| diabetes | x [10] standardised float32, y [1] float32 | scikit-learn, real |
| uci_housing | x [13] standardised float32, y [1] float32 | files |
| mnist, fashion_mnist | image [28, 28, 1] uint8, label | files, TFRecord, TFDS |
| cifar10, cifar100 | image [32, 32, 3] uint8, label | files, TFRecord, TFDS |
| flowers | image [224, 224, 3] uint8, label | image folders, TFRecord |
| imdb | words [256] int32, length, label (0 positive, 1 negative) | files |
| sentiment | words [256] int32, length, label (0 negative, 1 positive) | files |
| imikolov | firstw secondw thirdw forthw nextw, int32 | files |
| movielens | the eight inputs of Fluid's recommender, lengths, score [1] | files |
| wmt14 | src_word_id, target_language_word, ..._next_word [82] int32, lengths | files |
| wmt16 | the same, English to German, [64] | files |
| conll05 | the nine inputs of Fluid's role labelling [100] int32, length | files |
| mock | image of ones in any shape, label 1: FastNN's, to measure speed | made |

Files are looked for in `dataset_dir`, else in `$PENSTOCK_DATA/<name>`, else in `datasets/<name>` in
penstock's cache folder; then in TFDS, if it is installed and has prepared the set. Nothing is
downloaded. For a set that is held in memory, read without `decode` and `augment`, `reader.data` is
the whole split.

Labels are int32 scalars. Features are standardised with the statistics of the training split.
Where a set is published without a test split, a fixed permutation sets aside a fifth of it (a tenth
of flowers and movielens).
"""

# Imported for what they register.
from penstock.readers.datasets import _conll05 as _conll05
from penstock.readers.datasets import _embedded as _embedded
from penstock.readers.datasets import _images as _images
from penstock.readers.datasets import _movielens as _movielens
from penstock.readers.datasets import _text as _text
from penstock.readers.datasets.registry import DatasetRequest as DatasetRequest
from penstock.readers.datasets.registry import RecordSet as RecordSet
from penstock.readers.datasets.registry import dataset as dataset
from penstock.readers.datasets.registry import dataset_names as dataset_names
from penstock.readers.datasets.registry import dataset_splits as dataset_splits
from penstock.readers.datasets.registry import register_dataset as register_dataset
