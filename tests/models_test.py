import keras
import numpy as np
import pytest

from tracker import models, variables

X = np.zeros([2, 8, 8], np.float32)
Y = np.zeros([2], np.int32)


def prepared(name, loss="auto", classes=10):
    model = models.make(name, (8, 8), classes, seed=0)
    return model, models.prepare(model, X, Y, classes, loss, "sgd")


@pytest.mark.parametrize("name", models.NAMES)
def test_built_in_models_give_logits(name):
    model, loss = prepared(name)
    assert model.output_shape == (None, 10)
    assert loss == "sparse_categorical_crossentropy"
    assert float(model.compute_loss(y=np.zeros(2), y_pred=model(X))) == pytest.approx(
        np.log(10), abs=1e-3
    )


def test_the_seed_decides_the_weights():
    one, again, other = (models.make("mlp", (8, 8), 10, s) for s in (0, 0, 1))
    assert np.array_equal(one.get_weights()[0], again.get_weights()[0])
    assert not np.array_equal(one.get_weights()[0], other.get_weights()[0])


def test_a_softmax_gets_the_loss_of_probabilities():
    model = keras.Sequential([keras.Input([8, 8]), keras.layers.Flatten(), keras.layers.Dense(10)])
    model.add(keras.layers.Softmax())
    model.layers[-1].activation = keras.activations.softmax
    models.prepare(model, X, Y, 10, "auto", "sgd")
    loss = model.compute_loss(y=np.zeros(2), y_pred=model(X))
    assert float(loss) == pytest.approx(np.log(10), abs=1e-3)


def test_a_saved_model(tmp_path):
    path = str(tmp_path / "m.keras")
    models.make("mlp", (8, 8), 10, 3).save(path)
    model, _ = prepared(path)
    assert model.count_params() == 17226


def test_a_saved_model_that_holds_code_is_not_run(tmp_path):
    path = str(tmp_path / "m.keras")
    model = keras.Sequential([keras.Input([8, 8]), keras.layers.Lambda(lambda x: x)])
    model.save(path)
    with pytest.raises(ValueError, match=f"--model={path}: Keras cannot load it"):
        prepared(path)


def test_a_compiled_model_keeps_its_loss():
    _, loss = prepared("tests.architectures:compiled")
    assert loss == "the model's own"
    with pytest.raises(ValueError, match="keeps its own loss"):
        prepared("tests.architectures:compiled", loss="mse")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("resnet", "--model=resnet is unknown"),
        ("no_such:thing", "could not be imported"),
        ("tests.architectures:nothing", "could not be imported"),
        ("tests.architectures:not_a_model", "returned str; should return a keras.Model"),
        ("tests.architectures:fails", "no such luck"),
        ("missing.keras", "there is no such file"),
        ("tests.architectures:wrong_output", r"does not fit 10 classes"),
        ("tests.architectures:all_frozen", "has no trainable variables"),
    ],
)
def test_a_wrong_model_is_one_sentence(name, says):
    with pytest.raises(ValueError, match=says) as caught:
        prepared(name)
    assert str(caught.value).startswith("--model")


def test_a_file_that_is_no_model(tmp_path):
    path = tmp_path / "m.keras"
    path.write_bytes(b"no model")
    with pytest.raises(ValueError, match="Keras cannot load it"):
        prepared(str(path))


def test_cross_entropy_by_name_is_that_of_auto():
    one, _ = prepared("linear")
    other, _ = prepared("linear", "sparse_categorical_crossentropy")
    x = np.random.default_rng(0).normal(size=X.shape).astype(np.float32)
    losses = [float(m.compute_loss(y=Y, y_pred=m(x))) for m in (one, other)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("loss", ["mean_squared_error", "categorical_crossentropy"])
def test_a_loss_that_does_not_fit_the_labels(loss):
    with pytest.raises(ValueError, match=f"--loss={loss}: does not fit the labels") as caught:
        prepared("linear", loss)
    assert "\n" not in str(caught.value)


def test_regression_wants_one_output():
    with pytest.raises(ValueError, match="does not fit 1 number to predict"):
        prepared("tests.architectures:dense_10", classes=0)


def test_an_unknown_loss():
    with pytest.raises(ValueError, match="--loss=mistake: Keras refuses it"):
        prepared("linear", loss="mistake")


def test_cnn_needs_images():
    with pytest.raises(ValueError, match=r"examples have shape \[5\]"):
        models.make("cnn", (5,), 10, 0)


class TestCanonicalPaths:
    def test_automatic_numbers_count_from_0_in_each_model(self):
        found = []
        for _ in range(2):
            model = models.make("mlp", (8, 8), 10, 0)
            found.append(variables.paths(model.trainable_variables, model))
        assert found[0] == found[1]
        assert found[0][0] == "sequential/dense/kernel"
        assert found[0][2] == "sequential/dense_1/kernel"
        assert found[0][4] == "sequential/dense_2/kernel"

    def test_given_names_stay(self):
        layers = [keras.layers.Dense(2, name="dense_7b"), keras.layers.Dense(2, name="head")]
        model = keras.Sequential([keras.Input([3]), *layers], name="net")
        found = variables.paths(model.trainable_variables, model)
        assert found[0] == "net/dense_7b/kernel"
        assert found[2] == "net/head/kernel"

    def test_equal_names_are_told_apart(self):
        import tensorflow as tf

        assert variables.paths([tf.Variable(1.0, name="w"), tf.Variable(2.0, name="w")]) == [
            "w", "w_1",
        ]  # fmt: skip
