from __future__ import annotations

import pytest

from softleak.cli import audit as parse
from softleak.core.errors import DataError, SoftleakError
from softleak.paper import data


@pytest.mark.parametrize(
    ("text", "shape"),
    [(None, None), ("3,32,32", (3, 32, 32)), ("1x28x28", (1, 28, 28)), ("7", (7,))],
)
def test_a_shape_is_read(text, shape):
    assert parse.input_shape(text) == shape


@pytest.mark.parametrize("text", ["", "3,,3", "0,2", "-1", "3,99999,99999", "three"])
def test_a_shape_that_makes_no_sense_is_named(text):
    with pytest.raises(DataError, match="such as 3,32,32"):
        parse.input_shape(text)


def test_classes_are_a_number_or_the_lines_of_a_file(tmp_path):
    (tmp_path / "names").write_text("cat\n\n dog \n")
    assert parse.class_names(None) == ()
    assert parse.class_names("2") == ("class 0", "class 1")
    assert parse.class_names(str(tmp_path / "names")) == ("cat", "dog")
    for wrong in ("1", "10000000", str(tmp_path / "none")):
        with pytest.raises(DataError):
            parse.class_names(wrong)


def test_a_normalisation_has_a_name_or_numbers():
    assert parse.normalisation(None) is None
    assert parse.normalisation("cifar10") is data.CIFAR10_NORM
    assert parse.normalisation("0.5/0.25") == data.Normalisation((0.5,), (0.25,))
    with pytest.raises(DataError, match="expected mean/std"):
        parse.normalisation("0.5")


def test_a_client_is_read_from_settings_or_a_file(tmp_path):
    file = tmp_path / "client.txt"
    file.write_text("lr = 0.01\nsteps = ?  # nobody said\n")
    assert parse.client(str(file)) == parse.client("lr=0.01,steps=?")
    assert parse.client(None) is None
    for wrong in ("steps=3", "nowhere.txt", "rate=3"):
        with pytest.raises(SoftleakError):
            parse.client(wrong)


def test_a_private_training_is_read():
    found = parse.private_training("clip=2, rate=0.01,steps=1000,delta=1e-6")
    assert (found.clip, found.rate, found.steps, found.delta) == (2.0, 0.01, 1000, 1e-6)
    assert parse.private_training(None).steps == 1


@pytest.mark.parametrize("text", ["clip", "epsilon=1", "steps=1.5", "rate=2", "clip=0", "delta=1"])
def test_a_private_training_that_makes_no_sense_is_named(text):
    with pytest.raises(SoftleakError, match="expected"):
        parse.private_training(text)
