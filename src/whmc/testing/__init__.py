"""Public tools to test that a kernel is exact, and targets with exact draws to test it on."""

from whmc.testing.classics import eggbox, gmm40, liang_wong
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
    "eggbox",
    "gaussian_mixture",
    "gmm40",
    "himmelblau",
    "invariance_test",
    "liang_wong",
    "loggamma_pair",
    "many_well",
    "reversibility_test",
    "shells",
    "two_scale_pair",
]
