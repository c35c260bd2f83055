"""Doors to and from other libraries, one file each."""
