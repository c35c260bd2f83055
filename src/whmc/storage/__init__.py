"""Folders and files of a run."""
