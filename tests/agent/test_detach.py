"""Starting what outlives us: with the system's own programs, and with an error for people when that fails."""

import contextlib

from chaoskit.agent import detach
from chaoskit.errors import NodeError


def test_only_the_systems_own_systemd_run_is_started(tmp_path, monkeypatch):
    """A sudoers file without `secure_path` leaves the caller's PATH to root; it decides nothing here."""
    marker, program = tmp_path / "ran", tmp_path / "systemd-run"
    program.write_text(f"#!/bin/sh\ntouch {marker}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    with contextlib.suppress(NodeError):  # no systemd here
        detach._start_unit(["/bin/true"], "chaoskit-test-of-path")
    assert not marker.exists()
