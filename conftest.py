"""What is not collected here: kernels are compiled by Triton, and cannot be imported without it."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["src/depositum/kernels/*"]
