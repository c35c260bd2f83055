"""The mode library: charts of the modes, their mixture q, and charts made from locations."""
