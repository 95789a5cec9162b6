"""A real site's word counts only where nobody but root can have written it: real files of other owners, modes and kinds."""

import os

import pytest

from chaoskit.agent.allow import allowed, refuse_unless_allowed
from chaoskit.agent.checks import check_site
from chaoskit.agent.contract import Refusal, Site
from chaoskit.agent.host import Host
from chaoskit.agent.paths import Paths


@pytest.fixture
def etc(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("giving files to others needs root")
    folder = tmp_path / "etc"
    folder.mkdir(mode=0o755)
    return folder


@pytest.fixture
def allow(etc):
    path = etc / "allow"
    path.touch(mode=0o644)
    return path


def refused(path, words, fault="link_flap"):
    with pytest.raises(Refusal, match=words):
        refuse_unless_allowed(str(path), fault, "n1")


def test_an_empty_file_allows_every_fault(allow):
    assert allowed(str(allow)) is None
    allow.write_text(" \n\n")
    refuse_unless_allowed(str(allow), "node_kill")


def test_a_file_that_names_faults_allows_no_others(allow):
    """Also one whose every line was commented out: somebody meant to allow less."""
    allow.write_text("link_flap # after the upgrade\n\n  rank_kill\n")
    refuse_unless_allowed(str(allow), "link_flap")
    refuse_unless_allowed(str(allow), "rank_kill")
    refused(allow, r"does not allow node_kill on this node; it allows link_flap, rank_kill", "node_kill")

    allow.write_text("# link_flap\n")
    refused(allow, "it allows none.*comments alone allow none, and only a wholly empty file allows all")


@pytest.mark.parametrize("line", ["link flap", "../link_flap", "Link_Flap", "all", "\x1b[31mlink_flap", "link_flap,rank_kill"])
def test_a_line_that_names_no_fault_is_refused_or_allows_nothing(allow, line):
    allow.write_text(f"\n{line}\n")
    refused(allow, "allow:2: .* is no fault's name" if line != "all" else "it allows all")


def test_no_file_is_no_consent(etc):
    refused(etc / "allow", "does not exist, so this node does not allow faults")
    refused(etc / "none" / "allow", "does not exist")


def harm_owner(path):
    os.chown(path, 4242, 0)


def harm_group(path):
    path.chmod(0o664)


def harm_world(path):
    path.chmod(0o646)


def harm_link(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def harm_pipe(path):
    path.unlink()
    os.mkfifo(path)


def harm_folder(path):
    path.unlink()
    path.mkdir()


def harm_parent_owner(path):
    os.chown(path.parent, 4242, 0)


def harm_parent_mode(path):
    path.parent.chmod(0o777)


def harm_parent_link(path):
    path.parent.rename(path.parent.with_name("real"))
    path.parent.symlink_to("real")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (harm_owner, "allow belongs to uid 4242"),
        (harm_group, r"allow may be written by others \(mode 0664\)"),
        (harm_world, r"mode 0646"),
        (harm_link, "cannot be read"),
        (harm_pipe, "is no file"),
        (harm_folder, "is no file"),
        (harm_parent_owner, "etc belongs to uid 4242"),
        (harm_parent_mode, r"etc may be written by others \(mode 0777\)"),
        (harm_parent_link, "etc is no directory"),
    ],
)
def test_what_another_user_could_have_written_does_not_count(allow, harm, words):
    """Whoever writes this file decides what root does here."""
    harm(allow)
    refused(allow, words)


def test_a_real_site_asks_for_it_and_a_lab_does_not(etc):
    paths, host = Paths(etc=str(etc)), Host(Site("n1"))

    with pytest.raises(Refusal, match=r"n1: .*does not exist"):
        check_site(Site("n1", require_allow_file=True, shared=True), host, paths, frozenset(), "link_flap")
    check_site(Site("n1", shared=True), host, paths, frozenset(), "link_flap")

    (etc / "allow").write_text("rank_kill\n")
    with pytest.raises(Refusal, match="does not allow link_flap"):
        check_site(Site("n1", require_allow_file=True, shared=True), host, paths, frozenset(), "link_flap")
    check_site(Site("n1", require_allow_file=True, shared=True), host, paths, frozenset(), "rank_kill")
