"""What is missing is named all at once, with the way to get it."""

from chaoskit.lab.requirements import missing


def test_everything_missing_is_named_with_its_package():
    programs = {"sh": "dash", "no-such-shell": "shell-extra", "no-such-tool": "toolbox"}

    assert missing(programs, {"/proc": "processes", "/proc/no-such": "magic: modprobe magic"}) == (
        "programs no-such-shell, no-such-tool are not installed: apt-get install shell-extra toolbox",
        "the kernel lacks magic: modprobe magic",
    )


def test_nothing_missing_says_nothing():
    assert missing({"sh": "dash"}, {"/proc": "processes"}) == ()
