import pytest

from penstock.readers.records import OFRECORD, RecordWriter


def test_file_appears_when_the_writer_is_closed(tmp_path):
    writer = RecordWriter(tmp_path / "new" / "a.tfrecord")
    writer.write(b"abc")
    assert not writer.path.exists()
    writer.close()
    writer.close()
    assert writer.path.read_bytes().hex() == "0300000000000000b099490e6162636e57f121"
    assert writer.num_records == 1
    assert [path.name for path in writer.path.parent.iterdir()] == ["a.tfrecord"]


def test_exception_leaves_the_file_that_was_there(tmp_path):
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"before")
    writer = RecordWriter(path)
    with pytest.raises(TypeError), writer:
        writer.write(3)
    assert path.read_bytes() == b"before"
    assert len(list(tmp_path.iterdir())) == 1


def test_writer_that_is_dropped_leaves_nothing(tmp_path):
    writer = RecordWriter(tmp_path / "a.tfrecord")
    writer.write(b"abc")
    del writer
    assert list(tmp_path.iterdir()) == []


def test_file_may_be_read_by_others_as_the_umask_says(tmp_path):
    with RecordWriter(tmp_path / "a.tfrecord"):
        pass
    (tmp_path / "plain").touch()
    modes = {path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) == 1


def test_compressed_ofrecord_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="OFRecord compression got 'GZIP', expected '', 'GZIP'"):
        RecordWriter(tmp_path / "part-0", framing=OFRECORD, compression="GZIP")
    assert list(tmp_path.iterdir()) == []
