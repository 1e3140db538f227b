import numpy as np
import pytest

from tracker import data


def save(path, x, y):
    np.savez(path, x=x, y=y)
    return str(path)


def test_the_embedded_digits():
    digits = data.load("digits", seed=0)
    assert digits.input_shape == (8, 8)
    assert digits.classes == 10
    assert len(digits.x) + len(digits.validation_x) == 1797
    assert len(digits.validation_x) == 359
    assert digits.x.min() == 0
    assert digits.x.max() == 1


def test_the_split_follows_the_seed_and_loses_nothing():
    one, again, other = (data.load("digits", seed=s) for s in (0, 0, 1))
    assert np.array_equal(one.x, again.x)
    assert not np.array_equal(one.x, other.x)
    whole = np.concatenate([one.x, one.validation_x]).reshape(1797, -1)
    more = np.concatenate([other.x, other.validation_x]).reshape(1797, -1)
    assert np.array_equal(np.sort(whole.sum(1)), np.sort(more.sum(1)))


def test_batches_go_on_exactly_where_they_are_asked_to():
    digits = data.load("digits", seed=0)
    whole = [y.numpy() for _, y in digits.batches(100, seed=3).take(40)]
    later = [y.numpy() for _, y in digits.batches(100, seed=3, first=17).take(23)]
    assert all(np.array_equal(a, b) for a, b in zip(whole[17:], later, strict=True))
    epoch = np.concatenate(whole[:15])
    assert len(epoch) == len(digits.y)
    assert np.array_equal(np.sort(epoch), np.sort(digits.y))
    assert not np.array_equal(epoch, np.concatenate(whole[15:30]))
    assert len(whole[14]) == 1438 % 100


def test_an_npz_file(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20)[:, None] % 4
    found = data.load(save(tmp_path / "a.npz", x, y), validation_fraction=0.25)
    assert found.classes == 4
    assert len(found.validation_y) == 5
    regression = data.load(save(tmp_path / "b.npz", x, x[:, 0]))
    assert regression.classes == 0
    assert regression.y.dtype == np.float32


def test_a_csv_file(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("height,kind,weight\n1.5,0,2\n2.5,1,3\n3.5,1,4\n")
    found = data.load(str(path), label="kind", validation_fraction=0)
    assert found.input_shape == (2,)
    assert found.classes == 2
    assert sorted(found.x[:, 0]) == [1.5, 2.5, 3.5]
    path.write_bytes(b"\xef\xbb\xbflabel, a\r\n0,1\r\n1,2\r\n")  # as a spreadsheet saves it
    assert data.load(str(path), label="label", validation_fraction=0).classes == 2
    path.write_text("a,price\n1,100.0\n2,250.0\n")
    assert data.load(str(path), label="price", validation_fraction=0).classes == 0


def test_stored_images_are_scaled(tmp_path):
    x = np.full([4, 2, 2], 255, np.uint8)
    assert data.load(save(tmp_path / "a.npz", x, np.arange(4) % 2)).x.max() == 1


def test_keras_data_sets_without_a_network_name_their_cache(tmp_path, monkeypatch):
    import keras

    def refuse():
        raise OSError("no network\nat all")

    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setattr(keras.datasets.mnist, "load_data", refuse)
    with pytest.raises(ValueError, match="no network") as caught:
        data.load("mnist")
    assert str(tmp_path / "datasets") in str(caught.value)
    assert "\n" not in str(caught.value)
    images = np.zeros([6, 28, 28], np.uint8), np.arange(6) % 3
    monkeypatch.setattr(keras.datasets.mnist, "load_data", lambda: (images, images))
    assert data.load("mnist").input_shape == (28, 28)


def bad_arrays():
    x, y = np.zeros([4, 2]), np.zeros(4, int)
    nan = x.copy()
    nan[1, 1] = np.nan
    return {
        "values that are NaN": (nan, y),
        "4 examples and y 3": (x, y[:3]),
        r"x has shape \[4\]": (x[:, 0], y),
        "labels go from -1": (x, y - 1),
        "should be stored as floats": (x, y + 70_000),
        "both should hold numbers": (x.astype(str), y),
    }


@pytest.mark.parametrize("says", bad_arrays())
def test_data_that_cannot_be_trained_on(tmp_path, says):
    path = save(tmp_path / "a.npz", *bad_arrays()[says])
    with pytest.raises(ValueError, match=says) as caught:
        data.load(path)
    assert str(caught.value).startswith(f"--dataset={path}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "label", "says"),
    [
        ("a.csv", "a,b\n1,2\n", "c", "--label='c' is no column"),
        ("a.csv", "a,b\n1,x\n", "a", "should hold numbers"),
        ("a.csv", "a,b\n1,2\n3\n", "a", "line 3 has 1 values; should have 2"),
        ("a.csv", "", "a", "should have a header line"),
        ("a.csv", "a,b\n", "a", "should have a header line"),
        ("a.csv", "a,a\n1,2\n", "a", "have the same name"),
        ("a.npz", "no zip", "", "cannot be read as .npz"),
        ("missing.npz", None, "", "there is no such file"),
        ("missing.csv", None, "a", "cannot be read: No such file"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, name, text, label, says):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=says):
        data.load(str(path), label=label)


def test_pickled_arrays_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([{"a": 1}], dtype=object), y=np.zeros(1))
    with pytest.raises(ValueError, match="cannot be read"):
        data.load(str(path))


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"--dataset=digit is unknown; should be digits, mnist"):
        data.load("digit")
    with pytest.raises(ValueError, match=r"needs the extra 'data'|could not be loaded"):
        data.load("tfds:no_such_data_set")
