"""How modes are found, and what may be missing."""
