"""Stan programs made into shared libraries with BridgeStan's C interface, by whichever tools are there."""

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from whmc.frontends.extras import install

INTERFACE = Path(__file__).with_name("stan_interface.cpp")

CANNOT_BUILD = (
    f"from_stan cannot build Stan programs here: {install('stan')} (its httpstan brings Stan's compiler and headers), "
    "or set BridgeStan up, bridgestan.compile.get_bridgestan_path() downloads its sources"
)


def build(program: str | Path) -> Path:
    """The library of a Stan program, given as the path of a .stan file or as text.

    BridgeStan builds it where its sources are set up, else httpstan's compiler and headers do, with our own C
    interface. What was built is kept, and built again only if the program or the tools have changed.
    """
    if isinstance(program, Path) and not program.is_file():
        raise FileNotFoundError(
            f"there is no Stan program {str(program)!r}: give the path of a .stan file, or its text"
        )
    if _bridgestan_is_set_up():
        return _by_bridgestan(program)
    if importlib.util.find_spec("httpstan") is None:
        raise ImportError(CANNOT_BUILD)
    return _by_httpstan(program)


def _cache() -> Path:
    """Where libraries are kept: the user's cache, so that a program is compiled once and not once a run."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "whmc" / "stan"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _name(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def _bridgestan_is_set_up() -> bool:
    """Whether BridgeStan has its C++ sources; asking it would print, or download them unasked."""
    from bridgestan.download import CURRENT_BRIDGESTAN

    return (Path(os.environ.get("BRIDGESTAN") or CURRENT_BRIDGESTAN) / "Makefile").is_file()


def _by_bridgestan(program: str | Path) -> Path:
    """BridgeStan leaves the library beside the program; a program given as text is written into the cache."""
    from bridgestan import compile_model

    if isinstance(program, str):
        path = _cache() / f"text_{_name(program)}.stan"
        if not path.exists() or path.read_text(encoding="utf-8") != program:
            path.write_text(program, encoding="utf-8")
        program = path
    # threads: chains that wait for the density can then be evaluated side by side
    return compile_model(program, make_args=["STAN_THREADS=True"])


def _by_httpstan(program: str | Path) -> Path:
    """The program and our interface as one C++ text, compiled into the cache under a name made from all of it."""
    source = _cpp(program) + "\n" + INTERFACE.read_text(encoding="utf-8")
    library = _cache() / f"{_name(source, *_command('', ''))}_model.so"
    if library.exists():
        return library
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        text, result = Path(folder) / "model.cpp", Path(folder) / "model.so"
        text.write_text(source, encoding="utf-8")
        run = _command(str(text), str(result))
        done = subprocess.run(run, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the C++ compiler failed on this Stan program: {' '.join(run)}\n{done.stderr}")
        # another process may have built it in the meantime, and this one may have loaded it: do not overwrite it
        if not library.exists():
            result.replace(library)  # in one step: others may look for it
    return library


def _cpp(program: str | Path) -> str:
    """What stanc makes of a program; what it says against it reaches the user whole."""
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(program, str):
            path = Path(folder) / "program.stan"
            path.write_text(program, encoding="utf-8")
        else:
            path = program.absolute()
        run = [str(_httpstan() / "stanc"), "--name", "whmc_model", "--include-paths=.", "--print-cpp", path.name]
        # where the program is, so that messages name the file shortly and #include finds its neighbours
        done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=path.parent)
    if done.returncode:
        raise ValueError(f"stanc does not accept this Stan program:\n{(done.stderr or done.stdout).strip()}")
    return done.stdout


def _httpstan() -> Path:
    """The folder of httpstan, found without importing it: it would load a web server."""
    found = importlib.util.find_spec("httpstan")
    if found is None or found.origin is None:
        raise ImportError(CANNOT_BUILD)
    return Path(found.origin).parent


def _command(source: str, library: str) -> list[str]:
    """The call of the C++ compiler, with the settings that httpstan's libraries were made with."""
    compiler = shlex.split(os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), ""))
    if not compiler:
        raise RuntimeError("building a Stan program needs a C++ compiler: install g++ or clang++, or set CXX")
    version = zip(("MAJOR", "MINOR", "PATCH"), importlib.metadata.version("bridgestan").split("."), strict=False)
    defines = [f"WHMC_BRIDGESTAN_{part}={number}" for part, number in version]
    defines += ["BOOST_DISABLE_ASSERTS", "BOOST_PHOENIX_NO_VARIADIC_EXPRESSION", "STAN_THREADS", "_REENTRANT"]
    libraries = ["sundials_cvodes", "sundials_idas", "sundials_kinsol", "sundials_nvecserial", "tbb"]
    if platform.system() == "Darwin":
        libraries += ["tbbmalloc", "tbbmalloc_proxy"]
    home = _httpstan()
    return [
        *compiler,
        *("-std=c++17", "-O2", "-w", "-shared", "-fPIC"),
        "-fvisibility=hidden",  # two models in one process must not share their tapes of derivatives
        *(f"-D{define}" for define in (*defines, "_GLIBCXX_USE_CXX11_ABI=0")),
        *("-I", str(home / "include"), "-L", str(home / "lib"), f"-Wl,-rpath,{home / 'lib'}"),
        # the source stands before the libraries: linkers take from them what is already known to be missing
        *(source, "-o", library, *(f"-l{name}" for name in libraries)),
    ]
