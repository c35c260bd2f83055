"""Packages that only some parts of whmc need: its extras."""


def install(extra: str) -> str:
    """How to get the packages of an extra, for the end of an error message.

    By the folder: a package index may hold another project under whmc's name.
    """
    return f'install whmc\'s extra {extra!r}, pip install ".[{extra}]" in the folder of whmc'
