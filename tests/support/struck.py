"""
`chaoskit run` that halts at one stage until its parent has struck it: a real process, told apart from a user's by nothing else.

Its parent sees `!` on the pipe STRUCK_TOLD when the stage is reached, and lets it go on by a byte on STRUCK_GO; by `m` it
takes all the memory that it is given, and more.
"""

import os

from chaoskit import wiring
from chaoskit.cli.main import entry
from chaoskit.engine.recorder import Recorder

STAGES = {
    "connect": ("say", "connecting to"),
    "start": ("say", "starting the training"),
    "baseline": ("say", "baseline"),
    "arm": ("record", "armed"),
    "inject": ("record", "injected"),
    "watch": ("say", "watching for recovery"),
    "revert": ("say", "reverting"),
    "judge": ("record", "verdict"),
    "report": ("report", ""),
}
"""Where a run is struck: at what it says, right after what it records, or as it begins to write its reports."""


class Hook:
    def __init__(self, stage, told, go):
        self.kind, self.what = STAGES[stage]
        self.told, self.go = told, go
        self.over = False

    def reached(self, kind, what):
        if not self.over and kind == self.kind and what.startswith(self.what):
            self.over = True
            os.write(self.told, b"!")
            word = os.read(self.go, 1)  # a handler runs meanwhile, and what it raises comes from here
            taken = []
            while word == b"m":
                taken.append(b"m" * (16 << 20))


def install(hook):
    say, record, write = Recorder.say, Recorder.record, wiring.write_reports

    def saying(self, kind, says, **data):
        say(self, kind, says, **data)
        if hook.what == "reverting" and says.startswith("watching"):
            (self.run_dir / "STOP").touch()  # so that there is something to revert
        if kind == "stage":
            hook.reached("say", says)

    def recording(self, kind, fields, **given):
        record(self, kind, fields, **given)
        hook.reached("record", kind)

    def writing(result):
        hook.reached("report", "")
        return write(result)

    Recorder.say, Recorder.record, wiring.write_reports = saying, recording, writing


if __name__ == "__main__":
    install(Hook(os.environ["STRUCK_AT"], int(os.environ["STRUCK_TOLD"]), int(os.environ["STRUCK_GO"])))
    entry()
