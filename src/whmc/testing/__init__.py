"""Public tools to test that a kernel is exact, and targets with exact draws to test it on."""

from whmc.testing.boltzmann import boltzmann_relaxation
from whmc.testing.classics import eggbox, gmm40, liang_wong
from whmc.testing.copies import ar1_pair, funnel_pair, many_gaussians, product_t, ridge, twisted_pair
from whmc.testing.invariance import InvarianceReport, ReversibilityReport, invariance_test, reversibility_test
from whmc.testing.robot import planar_robot
from whmc.testing.shapes import SHAPES, rastrigin, spike_and_slab
from whmc.testing.targets import (
    Problem,
    Shape,
    gaussian_mixture,
    himmelblau,
    loggamma_pair,
    many_well,
    shells,
    two_scale_pair,
)

__all__ = [
    "SHAPES",
    "InvarianceReport",
    "Problem",
    "ReversibilityReport",
    "Shape",
    "ar1_pair",
    "boltzmann_relaxation",
    "eggbox",
    "funnel_pair",
    "gaussian_mixture",
    "gmm40",
    "himmelblau",
    "invariance_test",
    "liang_wong",
    "loggamma_pair",
    "many_gaussians",
    "many_well",
    "planar_robot",
    "product_t",
    "rastrigin",
    "reversibility_test",
    "ridge",
    "shells",
    "spike_and_slab",
    "twisted_pair",
    "two_scale_pair",
]
