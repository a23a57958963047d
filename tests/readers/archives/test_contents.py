"""What stands in the files of a set is checked, and an error about it says where."""

import gzip
from dataclasses import replace

import numpy as np
import pytest

from penstock import readers
from penstock.readers import ArchiveError
from tests.readers.archives.damage import Case, write_files, write_original
from tests.readers.archives.original_sets import ORIGINALS
from tests.readers.convert.originals import idx_bytes


@pytest.mark.parametrize(
    ("name", "member", "old", "new", "expected"),
    [
        ("movielens", "ratings.dat", b"2::7::2", b"3::7::2", r"got user 3 and movie 7 in line 2"),
        ("movielens", "ratings.dat", b"::5::", b"::6::", r"got stars '6' in line 5, expected 1 to"),
        ("movielens", "users.dat", b"::48067", b"", r"users.dat got 4 fields in line 1, expected"),
        ("movielens", "users.dat", b"2::M", b"1::M", r"got user 1 again in line 2, expected each"),
        ("wmt14", "train/train", b"\t", b" ", r"wmt14/train/train got no pair of sentences"),
        ("wmt14", "src.dict", b"chat", b"\xff", r"src.dict got the byte 0xff in line 5, expected"),
        ("imikolov", "ptb.train.txt", b"the cat sat down", b"a", r"got no sentence of three words"),
        ("imdb", ".txt", b"p", b"p", r"aclImdb_v1.tar.gz' got no file train/pos/\*.txt"),
        ("sentiment", "neg/cv000_1.txt", b"n", b"n", "got 4 negative and 5 positive reviews"),
        ("cifar100", "train.bin", b"", b"\x14", r"train.bin got label 20 of image 0, expected 0"),
        ("cifar100", "train.bin", b"", b"ab", r"got 3075 bytes, expected 153700000 as published"),
    ],
)
def test_content_of_a_set_that_cannot_be_is_refused_with_its_place(
    tmp_path, name, member, old, new, expected
):
    original = next(o for o in ORIGINALS if o.name == name)
    (file,) = original.files
    members = [
        replace(entry, data=entry.data.replace(old, new) if old else new + entry.data[1:])
        if entry.name.endswith(member)
        else entry
        for entry in file.members
    ]
    if old == new:  # taken out
        members = [entry for entry in members if not entry.name.endswith(member)]
    changed = {file.name: file.with_members(members).packed()}
    write_files(Case(number=0, original=original, kind="content", changed=changed), tmp_path)
    with pytest.raises(ArchiveError, match=expected) as caught:
        readers.dataset(name, original.split, dataset_dir=tmp_path)
    assert caught.value.path == str(tmp_path / file.name)
    assert str(caught.value).endswith(f"Delete '{tmp_path / file.name}' and get it again.")


def test_verb_or_label_without_an_id_is_named(tmp_path):
    write_original("conll05", tmp_path)
    (tmp_path / "verbDict.txt").write_text("go\n")
    with pytest.raises(
        ArchiveError, match=r"test.wsj.props.gz got the verb 'sit' before line 4, expected one of"
    ):
        readers.dataset("conll05", "test", dataset_dir=tmp_path)
    (tmp_path / "verbDict.txt").write_text("go\nsit\n")
    (tmp_path / "targetDict.txt").write_text("B-V\n")
    with pytest.raises(ArchiveError, match=r"got the labels \['B-A0', 'I-A0'\] before line 4"):
        readers.dataset("conll05", "test", dataset_dir=tmp_path)


@pytest.mark.parametrize(
    ("images", "labels", "expected"),
    [
        (np.zeros((2, 28, 28)), np.zeros(3), r"idx1-ubyte.gz' got 3 labels, expected 2, one"),
        (np.zeros((2, 28, 28)), np.array([0, 10]), r"got label 10 at 1, expected labels 0 to 9"),
        (np.zeros((2, 32, 32)), np.zeros(2), r"\[2, 32, 32\], expected \[1 to 300000, 28, 28\]"),
        (np.zeros((0, 28, 28)), np.zeros(0), r"images-idx3-ubyte.gz' got shape \[0, 28, 28\]"),
    ],
)
def test_images_and_labels_that_do_not_fit_are_refused(tmp_path, images, labels, expected):
    for name, array in (("images-idx3", images), ("labels-idx1", labels)):
        packed = gzip.compress(idx_bytes(array.astype(np.uint8)))
        (tmp_path / f"train-{name}-ubyte.gz").write_bytes(packed)
    with pytest.raises(ArchiveError, match=expected):
        readers.dataset("mnist", dataset_dir=tmp_path)
