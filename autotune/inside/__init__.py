"""Everything that runs in the user's process; the parent process never imports this package.

The parent must not import torch, because a CUDA context in the parent would take GPU memory from
the program that is measured. Modules elsewhere in autotune import torch only inside functions that
run in the user's process.
"""
