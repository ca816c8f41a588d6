"""`convt3d bench FILE`."""

import argparse


def bench_file(args: argparse.Namespace) -> int:
    return 0
