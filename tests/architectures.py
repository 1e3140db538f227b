"""Models that tests name as `tests.architectures:function`."""

from __future__ import annotations

import keras

layers = keras.layers


def dense(input_shape, classes):
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Flatten(),
            layers.Dense(16, "tanh"),
            layers.Dense(classes),
        ]
    )


def conv(input_shape, classes):
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Reshape((*input_shape, 1)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(classes),
        ]
    )


def batch_norm(input_shape, classes):
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Reshape((*input_shape, 1)),
            layers.Conv2D(4, 3),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(classes),
        ]
    )


def dropout(input_shape, classes):
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Flatten(),
            layers.GaussianNoise(0.1),
            layers.Dense(16, "relu"),
            layers.Dropout(0.3),
            layers.Dense(classes),
        ]
    )


def recurrent(input_shape, classes):
    return keras.Sequential([keras.Input(input_shape), layers.LSTM(6), layers.Dense(classes)])


def embedding(input_shape, classes):
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Rescaling(16.0),
            layers.Flatten(),
            layers.Embedding(40, 4),
            layers.GlobalAveragePooling1D(),
            layers.Dense(classes),
        ]
    )


def frozen(input_shape, classes):
    model = dense(input_shape, classes)
    model.layers[1].trainable = False
    return model


def unused(input_shape, classes):
    """A layer that the output does not depend on: its variables have no gradient."""

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.flatten = layers.Flatten()
            self.used = layers.Dense(classes)
            self.spare = layers.Dense(5)

        def call(self, x):
            x = self.flatten(x)
            self.spare(x)
            return self.used(x)

    return Model()


def tied(input_shape, classes):
    inputs = keras.Input(input_shape)
    x = layers.Flatten()(inputs)
    x = layers.Dense(8)(x)
    shared = layers.Dense(8, "tanh")
    return keras.Model(inputs, layers.Dense(classes)(shared(shared(x))))


def compiled(input_shape, classes):
    model = dense(input_shape, classes)
    model.compile(
        keras.optimizers.SGD(0.05),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def wrong_output(input_shape, classes):
    return dense(input_shape, classes - 3)


def not_a_model(input_shape, classes):
    return "a model"


def fails(input_shape, classes):
    raise RuntimeError("no such luck")


def all_frozen(input_shape, classes):
    model = dense(input_shape, classes)
    model.trainable = False
    return model


def exploding(input_shape, classes):
    """Weights that overflow: the loss is NaN from the third step on at a learning rate of 1e18."""
    return dense(input_shape, classes)


def wide(input_shape, classes):
    """A layer large enough for the vectorised normal numbers."""
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Flatten(),
            layers.Dense(600, "relu"),
            layers.Dense(classes),
        ]
    )


def dense_10(input_shape, classes):
    """Ten outputs, whatever the labels."""
    return dense(input_shape, 10)
