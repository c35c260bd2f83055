"""Calls without the tests' type checks, which users do not have either: our own errors must come."""

import jaxtyping


def unchecked(call):
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        return call()
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
