"""
The part of chaoskit that runs on nodes: standard library only, Python 3.8, shipped as one reproducible zipapp.

    bridge     the SSH channel's end: starts the server when there is none, and hands it that end
    server     holds the socket, the entries and the leases; `verbs` is what it can be asked
    entries    one injection: prepared, armed, injected at T0, reverted at the end of its spans
    ledger     what is owed, on disk before any harm; `debts` pays it, whoever is still alive
    fuse       the second process: takes over when the server dies, ends it when it hangs
    tail       follows a log as the training's user; `spawn` starts a process that outlives us

`bundle` and `loader` are the controller's: they build the zipapp and carry it into root's folder.
"""
