"""Prints what a program sees of how it was started, as one line of JSON per process."""

import json
import os
import sys
import warnings

FLAGS = (
    "bytes_warning", "debug", "dev_mode", "dont_write_bytecode", "ignore_environment", "inspect",
    "interactive", "isolated", "no_site", "no_user_site", "optimize", "quiet", "utf8_mode",
    "verbose",
)  # fmt: skip
VARIABLES = ("A", "RANK", "LOCAL_RANK", "WORLD_SIZE", "OMP_NUM_THREADS")
main = sys.modules["__main__"]
seen = {
    "argv": sys.argv,
    "name": __name__,
    "file": __file__,
    "spec": __spec__ and (__spec__.name, __spec__.origin),
    "package": __package__,
    "cached": vars(main).get("__cached__"),
    "loader": type(vars(main)["__loader__"]).__name__,
    "globals": sorted(set(vars(main)) - {"FLAGS", "VARIABLES"}),
    "is main": vars(main) is globals(),
    "path": sys.path,
    "cwd": os.getcwd(),  # noqa: PTH109 - as most programs ask
    # our interpreters keep the folder of autotune's modules from the path, and ranks hash alike
    "flags": [f for f in FLAGS if getattr(sys.flags, f)],
    "options": sys._xoptions,
    "warnings": sys.warnoptions,
    "first filter": str(warnings.filters[0]),
    "asserts": __debug__,
    "env": {name: os.environ.get(name) for name in VARIABLES},
    "unbuffered": getattr(sys.stdout, "write_through", None),
}  # fmt: skip
sys.stdout.write(json.dumps(seen) + "\n")
sys.stdout.flush()
