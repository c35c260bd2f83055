"""Layers: maps in closed form both ways, which one after the other make a chart."""
