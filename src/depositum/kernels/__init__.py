"""Kernels for what torch has no fast form of: operations whose parameters differ from row to row. They need Triton."""
