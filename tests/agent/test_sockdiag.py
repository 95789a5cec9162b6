"""The kernel's own count of what was sent over a connection."""

import socket
import time

import pytest

from chaoskit.agent import sockdiag


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_what_was_sent_to_an_address_is_counted_by_connection(family, address):
    """Once the other side has acknowledged it; connections to other addresses are left out."""
    with socket.socket(family) as listener:
        try:
            listener.bind((address, 0))
        except OSError:
            pytest.skip("this machine has no {}".format(address))
        listener.listen()
        with socket.create_connection(listener.getsockname()[:2]) as sender, listener.accept()[0] as receiver:
            own, port = sender.getsockname()[:2], listener.getsockname()[1]
            sender.sendall(bytes(100_000))
            assert len(receiver.recv(100_000, socket.MSG_WAITALL)) == 100_000
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                found = [sent for sent in sockdiag.established([address]) if sent.port == port and sent.source == own[0]]
                if found and found[0].acknowledged >= 100_000:
                    break
                time.sleep(0.01)
            assert [sent.acknowledged in (100_000, 100_001) for sent in found] == [True]
            assert [sent for sent in sockdiag.established(["192.0.2.1"]) if sent.port == port] == []
