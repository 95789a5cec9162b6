"""What another process has open, as the kernel tells it."""

import os


def open_files(pid: int) -> list[str]:
    """Return what each descriptor of a process stands for; one that closes while it is read is not open.

    Raises:
        FileNotFoundError: the process is gone.
    """
    found = []
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
        except FileNotFoundError:
            continue
    return found
