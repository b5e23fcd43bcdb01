"""Leave modules out of the collection of doctests: kernels cannot be imported without Triton."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["src/depositum/kernels/*"]
