"""Public tools to test that a kernel is exact, and targets with exact draws to test it on."""

from whmc.testing.invariance import InvarianceReport, ReversibilityReport, invariance_test, reversibility_test
from whmc.testing.targets import (
    Problem,
    gaussian_mixture,
    himmelblau,
    loggamma_pair,
    many_well,
    shells,
    two_scale_pair,
)

__all__ = [
    "InvarianceReport",
    "Problem",
    "ReversibilityReport",
    "gaussian_mixture",
    "himmelblau",
    "invariance_test",
    "loggamma_pair",
    "many_well",
    "reversibility_test",
    "shells",
    "two_scale_pair",
]
