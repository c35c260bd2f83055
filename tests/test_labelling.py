"""Label switching in two languages, with and without the symmetry declared: the benchmark's promises."""

import pytest

import labelling

pytestmark = pytest.mark.models


@pytest.mark.filterwarnings("ignore::FutureWarning")  # ArviZ's, when PyMC imports it
@pytest.mark.slow
def test_six_labellings_or_one_and_the_same_posterior_and_evidence():
    assert labelling.run(draws=1000) == []
