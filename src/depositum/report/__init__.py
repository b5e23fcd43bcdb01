"""Output for the user: curves, tables, progress, tracking.

Import from the modules: they load matplotlib, pandas or TensorBoard, which not every caller needs.
"""
