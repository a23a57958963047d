"""Program functions as scikit-learn's estimators: its own checks, and what users put them into."""

import pickle
import weakref

import numpy as np
import optax
import pytest
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import penstock as ps
from penstock import layers

IRIS = load_iris(return_X_y=True)


@pytest.mark.quick("check_classifiers_one_label")
@pytest.mark.filterwarnings("default::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks([ps.sklearn.Classifier(), ps.sklearn.Regressor()])
def test_check_of_scikit_learn_passes(estimator, check):
    check(estimator)


def program(num_features, num_classes):
    """Return probabilities `[B, num_classes]` of a network with a normalisation."""
    hidden = layers.fc(layers.data("x", shape=[num_features]), size=16)
    return layers.fc(layers.batch_norm(hidden, act="relu"), size=num_classes, act="softmax")


@pytest.mark.slow
def test_classifier_of_ones_own_program_is_searched_in_a_pipeline():
    pipeline = make_pipeline(StandardScaler(), ps.sklearn.Classifier(program, optimizer=optax.sgd))
    names = {"classifier__learning_rate": [1e-6, 0.1], "classifier__num_epochs": [60]}
    search = GridSearchCV(pipeline, names, cv=2).fit(*IRIS)
    assert search.best_params_["classifier__learning_rate"] == 0.1
    assert search.best_score_ > 0.9
    assert search.predict_proba(IRIS[0]).sum(axis=1) == pytest.approx(1, abs=1e-6)


def test_regressor_is_cross_validated_with_scaled_targets():
    network = make_pipeline(StandardScaler(), ps.sklearn.Regressor(num_epochs=10))
    regressor = TransformedTargetRegressor(network, transformer=StandardScaler())
    assert cross_val_score(regressor, *load_diabetes(return_X_y=True), cv=2).min() > 0.3


def test_pickled_classifier_of_numpys_integers_answers_with_the_same_bits_and_is_no_circle():
    integers = {"batch_size": np.int64(50), "num_epochs": np.int32(2), "seed": np.int64(3)}
    classifier = ps.sklearn.Classifier(program, **integers).fit(*IRIS)
    expected = classifier.predict_proba(IRIS[0])
    copied = pickle.loads(pickle.dumps(classifier))
    again = clone(classifier).set_params(**{name: int(value) for name, value in integers.items()})
    with pytest.raises(NotFittedError):
        again.predict(IRIS[0])
    np.testing.assert_array_equal(copied.predict_proba(IRIS[0]), expected)
    np.testing.assert_array_equal(again.fit(*IRIS).predict_proba(IRIS[0]), expected)
    trainer = weakref.ref(classifier.trainer_)
    del classifier
    assert trainer() is None


def test_rows_are_predicted_alike_alone_and_among_thousands():
    regressor = ps.sklearn.Regressor(num_epochs=1).fit(*IRIS)
    many = np.tile(IRIS[0], (20, 1))
    np.testing.assert_array_equal(regressor.predict(many)[:150], regressor.predict(IRIS[0]))
    np.testing.assert_array_equal(regressor.predict(many)[-1:], regressor.predict(IRIS[0][-1:]))
