"""Measuring: the wide-area relay and the demo. The only folder that may import every other one."""
