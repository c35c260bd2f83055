"""Label switching in two languages, with and without the symmetry declared: the benchmark's promises."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import labelling


@pytest.mark.filterwarnings("ignore::FutureWarning")  # ArviZ's, when PyMC imports it
@pytest.mark.slow
def test_six_labellings_or_one_and_the_same_posterior_and_evidence():
    assert labelling.run(draws=1000) == []
