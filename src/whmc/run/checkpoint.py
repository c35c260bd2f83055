"""What a checkpoint holds of a course, and the course again from it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from whmc.kernels.base import AbstractKernel
from whmc.kernels.settings import move_names
from whmc.run.chains import Chains, Moment
from whmc.run.progress import Progress
from whmc.search.finders import AbstractFinder
from whmc.storage.draws_file import Record
from whmc.storage.serialize import NotPlain, encode
from whmc.storage.store import Store, StoreError
from whmc.target.target import Target
from whmc.warmup.warmup import WarmUp

if TYPE_CHECKING:
    from whmc.run.course import Course, Plan


def setup_of(course: "Course") -> dict[str, Any]:
    """What changes seldom."""
    setup: dict[str, Any] = {
        "stage": course.stage,
        "known": course.known,
        "finder": _plain(course.finder),
        "initial": course.initial,
        "fixed": course.given is not None,
        "search": course.search,
        "record": None if course.record is None else [course.record.dim, course.record.num_moves],
    }
    if course.stage == "search":
        return {**setup, "kernel": None if course.given is None else _plain(course.given)}
    warm, lookout, adaptation = course.warm, course.lookout, course.adaptation
    setup |= {
        "kernel": _plain(warm.kernel),
        "library": warm.library,
        "curvature": warm.curvature,
        "throats": warm.throats,
        "moves": move_names(warm.kernel),
        "report": course.report(),
        "lookout": None if lookout is None else lookout.state,
    }
    if adaptation is not None:
        setup["versions"] = [[_plain(kernel), library] for kernel, library in adaptation.versions]
    return setup


def state_of(course: "Course", moment: Moment | None) -> dict[str, Any]:
    """What changes with every block."""
    state: dict[str, Any] = {
        "round": course.round,
        "warm_gradients": course.warm_gradients,
        "seconds": course.seconds,
        "draws": course.plan.draws,
        "num_drawn": course.num_drawn,
        "work": course.work,
    }
    if course.stage == "search":
        return state
    states, made = moment or course.run.moment
    state |= {
        "states": states,
        "made": made,
        "num_gradients": course.run.num_gradients,
        "num_failed": course.run.num_failed,
    }
    if course.adaptation is not None:
        state["adaptation"] = course.adaptation.state()
    return state


def restored(
    target: Target,
    plan: "Plan",
    state: dict[str, Any],
    setup: dict[str, Any],
    *,
    store: Store,
    kernel: AbstractKernel | None = None,
    finder: AbstractFinder | Sequence[AbstractFinder] | None = None,
    progress: Progress | None = None,
    settings: dict[str, Any] | None = None,
) -> "Course":
    """The run as the checkpoint left it."""
    from whmc.run.course import Course  # late: a course stores itself

    searching = setup["stage"] == "search"
    given = _whole("kernel", setup["kernel"], kernel)
    finders = _whole("finder", setup["finder"], finder) if searching else None
    course = Course(
        target, plan, known=setup["known"], finder=finders, kernel=given if setup["fixed"] else None,
        initial=setup["initial"], progress=progress, store=store, settings=settings,
    )  # fmt: skip
    course.stage, course.round = setup["stage"], state["round"]
    course.warm_gradients, course.seconds = state["warm_gradients"], state["seconds"]
    course.num_drawn, course.search = state["num_drawn"], setup["search"]
    if setup["record"] is not None:
        course.record = Record(*setup["record"])
    if searching:
        return course
    course.run = Chains(target, plan.seed, Moment(state["states"], state["made"]), course.progress)
    course.run.num_gradients, course.run.num_failed = state["num_gradients"], state["num_failed"]
    course.warm = WarmUp.restored(
        given, setup["library"], fixed=setup["fixed"], throats=setup["throats"], curvature=setup["curvature"]
    )
    if setup["lookout"] is not None:
        course.lookout = course.watch(setup["library"])
        course.lookout.state = setup["lookout"]
    if "adaptation" in state:
        assert course.record is not None
        versions = [(_whole("kernel", one, kernel), library) for one, library in setup["versions"]]
        rows = store.rows(course.record.dtype)
        course.adapt().restore(state["adaptation"], versions, lambda at: course.record.trace(np.array(rows[at])))  # type: ignore[union-attr]
    course.saved = course.version()
    return course


def _plain(value: Any) -> Any:
    """As it is, if it can be stored; else its name, and of a kernel its numbers: the owner has to bring it again."""
    try:
        encode(value, {})
        return value
    except NotPlain:
        numbers = [np.asarray(leaf) for leaf in jax.tree.leaves(value)] if isinstance(value, AbstractKernel) else []
        return {"name": type(value).__name__, "moves": str(jax.tree.structure(value)), "numbers": numbers}


def _whole(option: str, stored: Any, given: Any) -> Any:
    """What `_plain` was given; what could not be stored is taken from the user, with the stored numbers."""
    if not (isinstance(stored, dict) and "name" in stored):
        return stored
    if given is None:
        raise StoreError(f"this run has a {option} of its own, {stored['name']}: give it again, resume(..., {option}=)")
    if not isinstance(given, AbstractKernel):
        return given
    structure: Any = jax.tree.structure(given)
    if type(given).__name__ != stored["name"] or str(structure) != stored["moves"]:
        raise StoreError(f"{option} is not what the run was made with, {stored['name']}")
    return jax.tree.unflatten(structure, [jnp.asarray(number) for number in stored["numbers"]])
