"""Triton kernels for operations whose parameters differ from row to row, for which torch has no fast form."""
