"""Measuring: the wide-area relay, simulated time, the demo. This folder alone may import every other one."""
