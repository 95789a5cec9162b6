"""A log that is read again from its start, after the channel was lost or the node rebooted, must not count twice."""


class Reread:
    """
    Knows the lines of one log that were already taken, and lets only new ones through.

    A re-read log begins with the lines that were seen. Should it differ from them it is another file (the node lost its
    disk, somebody rotated), and all of its lines are new.
    """

    def __init__(self) -> None:
        self._known: list[int] = []
        self._next: int | None = None
        self._held: list[str] = []
        self._held_since = 0.0

    def begin(self) -> None:
        """The log is about to be read from its start."""
        self._next = 0 if self._known else None
        self._held.clear()

    def fresh(self, lines: tuple[str, ...], since: float) -> tuple[tuple[str, ...], float]:
        """Return the lines of a read that are new, and the moment after which they were written."""
        out: list[str] = []
        for line in lines:
            mark = hash(line)
            if self._next is None:
                self._known.append(mark)
                out.append(line)
            elif mark == self._known[self._next]:
                self._hold(line, since)
            else:
                since = min(since, self._held_since) if self._held else since
                out += [*self._held, line]
                self._known = [hash(one) for one in out]
                self._next = None
                self._held.clear()
        return tuple(out), since

    def _hold(self, line: str, since: float) -> None:
        if not self._held:
            self._held_since = since
        self._held.append(line)
        self._next = (self._next or 0) + 1
        if self._next == len(self._known):
            self._next = None
            self._held.clear()
