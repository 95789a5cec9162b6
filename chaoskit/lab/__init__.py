"""
The embedded cluster: real hosts on one machine, each a `runc` container over an overlay of the machine's own root.

General layout, from pure to dirty:

    plan          who is in the lab, with which addresses and ids: pure, JSON in and out
    inventory     the files that others read: inventory, ssh_config, known_hosts
    bundle        what runc is told of a node, and what a node may do
    requirements  which programs and kernel features are missing, and how to get them
    namespaces    the system calls that Python has no name for
    cgroups       how the lab is held together, and killed
    network       links, routes and the per-packet spraying over two planes
    rootfs        what differs in a node's root from the machine's: accounts, keys, masks
    storage       the checkpoint file system over sshfs
    prepare       all of it that does not run
    boot          one life of one node, from links to power-off
    supervisor    the process that keeps the nodes: boots them, and again after a reboot
    node_init     process 1 inside a node
    gpus          the state of a node's simulated GPUs
    nvml          the library by which every program sees them, built from nvml.c
    gpu_driver    makes who computes on a GPU as slow as its clock says
    nvidia_smi    the GPUs for people
    control       up, down, status, ssh: what everybody else calls

The lab's network and overlay mounts live in namespaces of the supervisor. When it dies, by whatever hand, they go with
it; what `down` must still remove is one tmpfs and the lab's cgroups.
"""
