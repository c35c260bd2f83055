"""Estimates from draws: arrays in, numbers with errors out."""
