"""Detection of lattice formats from the first lines."""

import gzip
from io import BufferedReader, BytesIO

import pytest

from models.errors import FormatError
from models.lattices.files import detect_lattice_format


@pytest.mark.parametrize(
    ("content", "form"),
    [
        ("VERSION=1.0\nN=2 L=1\n", "slf"),
        ("# made by hand\n\n#\n  UTTERANCE=a\n", "slf"),
        ("\ufeffN=2 L=1\n", "slf"),
        ("utt-1\n0 1 the 1,2,3\n1\n\n", "kaldi"),
        ("utt-1 \r\n0\t1\t7\t1,2,3\r\n", "kaldi"),
        ("utt=1\n0 1 the 1,2,3\n", "kaldi"),
        ("base=2.7 lmname='a'\nN=2 L=1\n", "slf"),
        ("utt0 \n0 1.5,2.5,7_7\n\nutt1 \n0 1 a 1,2,3\n", "kaldi"),
        ("utt0\r\n0\t-1.5,2e1\r\n\r\n", "kaldi"),
        ("utt0\n0 ,,\n\n", "kaldi"),
        ("utt0\n0\n\nutt1\n0 1 a\n1\n", "kaldi"),
        ("utt0 \n\nutt1 \n\nutt2 \n0 1 a 1,2,3\n", "kaldi"),
        ("utt-1\nutt-2\n", None),
        ("title\n\n1 and,2\n", None),
        ("title\n5\n6\n", None),
        ("a=b\t-1.5\n", None),
        ("a=1 ||| a ||| am= 1\n", None),
        ("utt-1 the cat\n0 1 2\n", None),
        ("0 ||| N=2 ||| am= 1\n", None),
        ("-1 -2 3 V=1\n", None),
        ('{"candidates": [{"text": "VERSION=1.0"}]}\n', None),
        ("", None),
    ],
)
def test_a_format_is_detected_from_the_first_lines(tmp_path, content, form):
    (tmp_path / "plain").write_text(content, encoding="utf-8", newline="")
    (tmp_path / "packed.gz").write_bytes(gzip.compress(content.encode()))
    assert [detect_lattice_format(tmp_path / name) for name in ("plain", "packed.gz")] == [form, form]


def test_a_folder_has_lattices_if_file_names_say_so(tmp_path):
    assert detect_lattice_format(tmp_path) is None
    (tmp_path / "utt.slf.xz").touch()
    assert detect_lattice_format(tmp_path) == "slf"


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(FormatError, match="there is no such file"):
        detect_lattice_format(tmp_path / "none")


@pytest.mark.parametrize(
    ("content", "form"), [(b"utt-1\n0 1 the 1,2,3\n1\n\n", "kaldi"), (b"0 ||| a\n", None)]
)
def test_a_stream_is_left_for_its_reader(content, form):
    stream = BufferedReader(BytesIO(content))
    assert detect_lattice_format(stream) == form
    assert stream.read() == content
