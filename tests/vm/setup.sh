#!/bin/sh
# Runs once inside the new root: accounts, sshd, networks. What differs between machines comes from the kernel's command line.
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin

# An account that may run the agent as root through sudo, and whose keys do not lie in its home: that is on a file server.
useradd --create-home --home-dir /srv/local/chaos --uid 1500 --shell /bin/bash chaos
usermod --home /home/chaos chaos
mkdir -p /etc/ssh/keys /home
install -m 644 /root/key.pub /etc/ssh/keys/root
install -m 644 /root/key.pub /etc/ssh/keys/chaos
echo 'chaos ALL=(root) NOPASSWD: /usr/bin/python3' >/etc/sudoers.d/chaos
chmod 440 /etc/sudoers.d/chaos
cat >/etc/ssh/sshd_config.d/tests.conf <<'CONF'
AuthorizedKeysFile /etc/ssh/keys/%u
PermitRootLogin prohibit-password
PasswordAuthentication no
UseDNS no
CONF

# The address of each machine is the last number of vm.id= on the command line.
cat >/usr/local/sbin/vm-network <<'SCRIPT'
#!/bin/sh
id=$(sed -n 's/.*vm\.id=\([0-9]*\).*/\1/p' /proc/cmdline)
echo "vm$id" >/proc/sys/kernel/hostname
ip link set lo up
while [ ! -e /sys/class/net/eth2 ]; do sleep 0.1; done
ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2
ip link set eth1 up; ip addr add "10.78.0.$id/24" dev eth1
ip link set eth2 up; ip addr add "10.79.0.$id/24" dev eth2
ip route add 10.99.0.0/24 via 10.79.0.254 dev eth2 metric 50
SCRIPT
chmod 755 /usr/local/sbin/vm-network
cat >/etc/systemd/system/vm-network.service <<'UNIT'
[Unit]
DefaultDependencies=no
Before=network-pre.target network.target sshd.service ssh.service
After=local-fs.target systemd-udevd.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/vm-network
[Install]
WantedBy=multi-user.target
UNIT
systemctl enable vm-network.service ssh.service
systemctl disable nfs-server.service rpcbind.service rpcbind.socket e2scrub_reap.service apt-daily.timer apt-daily-upgrade.timer
systemctl mask serial-getty@ttyS0.service getty@tty1.service apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer systemd-timesyncd.service 2>/dev/null || true
rm -f /etc/machine-id
: >/etc/machine-id
: >/etc/fstab
rm -f /etc/ssh/ssh_host_*
ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
# Emulated, a login takes seconds when it must start a manager for its user first, and sudo asks for our own name.
mkdir -p /var/lib/systemd/linger
touch /var/lib/systemd/linger/root /var/lib/systemd/linger/chaos
echo '127.0.1.1 vm1 vm2' >>/etc/hosts
rm -f /etc/resolv.conf
echo LANG=C.UTF-8 >/etc/default/locale
mkdir -p /etc/chaoskit
touch /etc/chaoskit/allow
echo 'kernel.panic = 3' >/etc/sysctl.d/panic.conf
echo 'kernel.sysrq = 1' >>/etc/sysctl.d/panic.conf
