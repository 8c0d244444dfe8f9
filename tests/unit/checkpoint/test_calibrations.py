"""What thresholds are worth, kept beside the models of a registry."""

import pytest

from models.checking.calibration import Calibration, CalibrationPoint
from models.checkpoint.documents import CALIBRATIONS_FOLDER, CalibrationStore
from models.errors import FormatError, InvalidInputError, RegistryError

POINTS = [(0.1, 0.4, 0.9), (0.3, 0.7, 0.8), (0.5, 0.65, 0.6), (0.9, 0.95, 0.2)]


def calibration(model="small@3", points=POINTS):
    named = [dict(zip(("threshold", "precision", "recall"), point, strict=True)) for point in points]
    return Calibration(
        model=model,
        kinds=["real_word"],
        words_per_error=20.0,
        points=[CalibrationPoint(**point) for point in named],
        corpus_sha256="0" * 64,
        created="2026-01-01T00:00:00+00:00",
    )


def test_what_is_written_is_read_again_and_replaced(tmp_path):
    store = CalibrationStore(tmp_path)
    assert store.read("small@3") is None
    store.write(calibration(points=POINTS[:2]))
    store.write(calibration())
    assert store.read("small@3") == calibration()
    assert store.read("small@4") is None
    assert [path.name for path in (tmp_path / CALIBRATIONS_FOLDER).iterdir()] == ["small@3.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"model": "small@3"}', b"\xff"])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, content):
    store = CalibrationStore(tmp_path)
    path = store.write(calibration())
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"small@3\.json.*measure again"):
        store.read("small@3")


@pytest.mark.parametrize(
    ("given", "number", "field"),
    [("20.0", "Infinity", "words_per_error"), ("0.65", "NaN", "points.2.precision")],
)
def test_what_is_no_number_is_refused(tmp_path, given, number, field):
    store = CalibrationStore(tmp_path)
    path = store.write(calibration())
    path.write_text(path.read_text().replace(given, number))
    with pytest.raises(FormatError, match=f"is no calibration: {field} is"):
        store.read("small@3")


def test_a_file_of_another_version_is_refused(tmp_path):
    store = CalibrationStore(tmp_path)
    store.write(calibration()).rename(tmp_path / CALIBRATIONS_FOLDER / "small@4.json")
    with pytest.raises(FormatError, match="is the calibration of 'small@3'"):
        store.read("small@4")


def test_points_out_of_order_are_refused(tmp_path):
    store = CalibrationStore(tmp_path)
    store.write(calibration(points=POINTS[::-1]))
    with pytest.raises(FormatError, match="ascending"):
        store.read("small@3")


@pytest.mark.parametrize("address", ["../x@1", "x", "x@../y", "@1"])
def test_an_address_that_is_no_version_is_refused(tmp_path, address):
    with pytest.raises(InvalidInputError):
        CalibrationStore(tmp_path).read(address)


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / CALIBRATIONS_FOLDER).write_text("a file")
    with pytest.raises(RegistryError, match="cannot write"):
        CalibrationStore(tmp_path).write(calibration())


def test_the_threshold_for_a_precision_keeps_it_at_all_higher_ones():
    assert calibration().threshold_for(0.3) == 0.1
    assert calibration().threshold_for(0.65) == 0.3
    assert calibration().threshold_for(0.7) == 0.9
    assert calibration().threshold_for(0.95) == 0.9
    with pytest.raises(InvalidInputError, match=r"precision is 0.96.* none more than 0.950"):
        calibration().threshold_for(0.96)


def test_the_precision_at_a_threshold_is_that_of_the_next_lower_one():
    assert calibration().precision_at(0.05) is None
    assert calibration().precision_at(0.3) == 0.7
    assert calibration().precision_at(0.49) == 0.7
    assert calibration().precision_at(1.0) == 0.95
