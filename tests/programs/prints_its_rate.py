"""Prints what a training script prints at its end, without training."""

import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float)
parser.add_argument("--fast", action="store_true")
parser.add_argument("--device", default="cpu")
args = parser.parse_args()
print(f"device: {args.device}")
print(f"resident memory: {int(2.4 * 2**30)} bytes")
print(f"{160.0 if args.fast else 100.0:.2f} samples/s")
