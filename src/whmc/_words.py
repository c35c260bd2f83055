"""Words for people."""


def counted(number: int, noun: str) -> str:
    """A number of things: `1 mode`, `2 modes`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
