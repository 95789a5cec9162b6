"""
What stands in for a training on a node: a launcher, and one rank that it starts again whenever it is killed.

The rank has its checkpoint file open and computes on GPU 0, hardly, or visibly while the file `busy` is there. Each end of
a rank is written down. Standard library only; runs on the node.
"""

import os
import sys
import time
from contextlib import suppress

FOLDER = "/var/lib/chaoskit-matrix"


def rank(checkpoint):
    """Be the rank, for ever."""
    with open("/run/chaoskit-gpu/clients/{}".format(os.getpid()), "w") as client:
        client.write("0\n")
    with open(checkpoint, "a"):
        while True:
            if os.path.exists(FOLDER + "/busy"):
                sum(range(20_000))
                time.sleep(0.005)
            else:
                time.sleep(0.05)


def main(checkpoint):
    """Launch the rank, and again."""
    if "RANK" in os.environ:
        rank(checkpoint)
    env = {"RANK": "0", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "matrix", "PATH": os.environ["PATH"]}
    while True:
        argv = [sys.executable, "-I", "-S", os.path.abspath(__file__), checkpoint]
        pid = os.spawnve(os.P_NOWAIT, sys.executable, argv, env)  # noqa: S606 - no shell is what we want
        os.waitpid(pid, 0)
        with suppress(FileNotFoundError):  # the GPU's driver may have heard of it first
            os.unlink("/run/chaoskit-gpu/clients/{}".format(pid))
        with open(FOLDER + "/ends", "a") as ends:
            ends.write("{}\n".format(pid))


if __name__ == "__main__":
    main(sys.argv[1])
