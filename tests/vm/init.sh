#!/bin/busybox sh
# The first process: loads what the disk needs, mounts it and hands over to systemd.
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t proc proc /proc
while read -r name; do /bin/busybox insmod "/modules/$name"; done < /modules/order
/bin/busybox mount -t ext4 /dev/vda /root
/bin/busybox umount /proc
/bin/busybox mount --move /dev /root/dev
exec /bin/busybox switch_root /root /sbin/init
