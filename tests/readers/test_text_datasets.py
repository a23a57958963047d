"""The text sets of Fluid's book, from archives as they were published, with Fluid's ids."""

import pytest

from penstock import readers
from penstock.readers import DatasetNotFoundError
from tests.readers.archives.damage import write_original
from tests.readers.convert.originals import write_tar
from tests.readers.published import whole


def write_imdb(folder, reviews):
    members = {f"aclImdb/{name}": content for name, content in reviews.items()}
    write_tar(folder / "aclImdb_v1.tar.gz", members)


def test_imdb_has_fluids_dictionary_and_labels(tmp_path):
    reviews = {
        "train/pos/0_9.txt": b"Good, " * 200,
        "train/neg/0_1.txt": b"bad film! " * 160,
        "test/neg/0_1.txt": b"bad rare",
    }
    write_imdb(tmp_path, reviews)
    train = whole("imdb", dataset_dir=tmp_path, max_length=4)
    rows = {
        label: (words.tolist(), length)
        for words, length, label in zip(
            train["words"], train["length"], train["label"].tolist(), strict=True
        )
    }
    assert rows == {0: ([0, 0, 0, 0], 4), 1: ([1, 2, 1, 2], 4)}
    test = whole("imdb", "test", dataset_dir=tmp_path)
    assert test["words"].shape == (1, 256)
    assert test["words"][0, :3].tolist() == [1, 3, 0]  # 3 is <unk>, then padding
    assert test["length"].tolist() == [2]


def test_imdb_words_are_bytes_as_fluids_are(tmp_path):
    # Worked out by hand from Fluid's `tokenize` and `build_dict`: ASCII alone is punctuation, case
    # and white space. As text, É would be é, and the no-break space would divide x and y.
    review = "Don't, <br />CAFÉ x\u00a0y \u2019\n".encode()
    reviews = {
        "train/neg/1_1.txt": b"\xff b \x85\x1c",  # no UTF-8
        "train/pos/2_9.txt": review * 151,
        "train/pos/1_9.txt": b"b b" + b" b a" * 150,
        "train/unsup/1_0.txt": b"a " * 500,
        "test/pos/1_9.txt": b"\xff\t" * 150,
        "urls_pos.txt": b"a " * 500,
    }
    write_imdb(tmp_path, reviews)
    batch = whole("imdb", dataset_dir=tmp_path, max_length=6)
    # b 153; then 151 times each, by their bytes: br caf\xc3\x89 dont x\xc2\xa0y \xe2\x80\x99 \xff;
    # a is seen 150 times: not more, so <unk>, as is \x85\x1c.
    b, br, cafe, dont, x_y, quote, byte, unknown = range(8)
    assert batch["words"].tolist() == [
        [dont, br, cafe, x_y, quote, dont],
        [b, b, b, unknown, b, unknown],
        [byte, b, unknown, 0, 0, 0],
    ]
    assert batch["label"].tolist() == [0, 0, 1]  # positive first, in the archive's order
    assert batch["length"].tolist() == [6, 6, 3]


def test_imikolov_gives_five_grams_of_fluids_ids(tmp_path):
    write_original("imikolov", tmp_path)
    train = whole("imikolov", dataset_dir=tmp_path)
    assert list(train) == ["firstw", "secondw", "thirdw", "forthw", "nextw"]
    assert len(train["nextw"]) == 110  # <s> the cat sat down <e> holds two 5-grams
    # Most frequent first, then by name: <e> <s> cat the (56 times), down sat (55); 6 is <unk>.
    assert [int(column[0]) for column in train.values()] == [1, 3, 2, 5, 4]
    test = whole("imikolov", "test", dataset_dir=tmp_path)
    assert [column.tolist() for column in test.values()] == [[1, 3], [3, 2], [2, 6], [6, 6], [6, 0]]


def test_movielens_gives_the_recommenders_inputs(tmp_path):
    write_original("movielens", tmp_path)
    train = whole("movielens", dataset_dir=tmp_path)
    assert train["score"].shape == (18, 1)
    assert set(train["score"].reshape(-1).tolist()) <= {-3.0, -1.0, 1.0, 3.0, 5.0}
    row = train["user_id"].tolist().index(1)
    assert (train["gender_id"][row], train["age_id"][row], train["job_id"][row]) == (1, 0, 10)
    assert train["category_id"][row].tolist() == [0, 1, 0, 0, 0, 0]
    assert train["category_length"][row] == 2
    assert train["movie_title"][row, :2].tolist() == [1, 0]  # "story" < "toy"
    assert train["title_length"][row] == 2


def test_wmt14_gives_source_target_and_the_target_a_word_later(tmp_path):
    write_original("wmt14", tmp_path)
    batch = whole("wmt14", dataset_dir=tmp_path, max_length=6)
    assert len(batch["src_length"]) == 5  # pairs of more than 80 words are left out
    first = {name: column[0].tolist() for name, column in batch.items()}
    assert first == {
        "src_word_id": [0, 3, 4, 2, 1, 1],
        "src_length": 5,
        "target_language_word": [0, 3, 4, 1, 1, 1],
        "target_language_next_word": [3, 4, 1, 1, 1, 1],
        "trg_length": 3,
    }


def test_wmt16_builds_its_dictionaries_from_the_training_split(tmp_path):
    write_original("wmt16", tmp_path)
    batch = whole("wmt16", dataset_dir=tmp_path, max_length=5)
    assert batch["src_word_id"].tolist() == [[0, 3, 4, 5, 1], [0, 3, 4, 1, 1]]
    assert batch["target_language_word"].tolist() == [[0, 3, 4, 5, 1], [0, 3, 4, 1, 1]]
    assert batch["target_language_next_word"].tolist() == [[3, 4, 5, 1, 1], [3, 4, 1, 1, 1]]
    assert (batch["src_length"].tolist(), batch["trg_length"].tolist()) == ([5, 4], [4, 3])
    unseen = whole("wmt16", "validation", dataset_dir=tmp_path)
    assert unseen["src_word_id"].shape == (1, 64)
    assert unseen["src_word_id"][0, :4].tolist() == [0, 4, 2, 1]
    assert unseen["target_language_next_word"][0, :3].tolist() == [4, 2, 1]
    assert whole("wmt16", "test", dataset_dir=tmp_path)["src_word_id"][0, :3].tolist() == [0, 5, 1]


def test_sentiment_alternates_and_numbers_every_word_by_frequency(tmp_path):
    write_original("sentiment", tmp_path)
    train = whole("sentiment", dataset_dir=tmp_path, max_length=4)
    assert train["label"].tolist() == [0, 1] * 4
    # "," and "watch" are in both kinds; then in the order of first use: bad don ' t . good it !
    assert train["words"][0].tolist() == [2, 0, 3, 4]
    assert train["words"][1].tolist() == [7, 0, 1, 8]
    test = whole("sentiment", "test", dataset_dir=tmp_path)
    assert test["label"].tolist() == [0, 1]
    assert test["length"].tolist() == [7, 5]
    assert test["words"].shape == (2, 256)


def test_conll05_gives_fluids_nine_inputs_for_each_verb(tmp_path):
    write_original("conll05", tmp_path)
    batch = whole("conll05", "test", dataset_dir=tmp_path, max_length=3)
    first = {name: column[0].tolist() for name, column in batch.items()}
    assert first == {
        "word_data": [3, 4, 5],
        "ctx_n2_data": [3, 3, 3],
        "ctx_n1_data": [4, 4, 4],
        "ctx_0_data": [5, 5, 5],
        "ctx_p1_data": [2, 2, 2],
        "ctx_p2_data": [2, 2, 2],
        "verb_data": [1, 1, 1],
        "mark_data": [1, 1, 1],
        "target": [2, 3, 0],
        "length": 3,
    }
    assert batch["ctx_n1_data"][1].tolist() == [1, 0, 0]
    assert batch["length"].tolist() == [3, 1] * 3
    (tmp_path / "verbDict.txt").unlink()
    with pytest.raises(DatasetNotFoundError, match=r"expected one of 'verbDict.txt' there"):
        readers.dataset("conll05", "test", dataset_dir=tmp_path)
