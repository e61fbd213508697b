#!/bin/busybox sh
# The first process of the test machine, twice: in the first file system it finds the disk, and on the disk it lays out
# what systemd would, unpacks the project and obeys the host, one command after the other, until it is switched off.
B=/bin/busybox

if [ -d /modules ]; then
    $B mkdir -p /proc /sys /dev /root
    $B mount -t devtmpfs dev /dev
    $B mount -t proc proc /proc
    for module in /modules/*; do $B insmod "$module"; done
    $B mount -t ext4 -o rw,noatime /dev/vda /root
    $B mount -t tmpfs -o mode=755 run /root/run
    $B cp /init /root/run/init
    $B umount /proc
    $B mount -o move /dev /root/dev
    exec $B switch_root /root /bin/sh /run/init
fi

export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
mount -t proc -o nosuid,nodev,noexec proc /proc
mount -t sysfs -o nosuid,nodev,noexec sysfs /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts -o gid=5,mode=620 devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t cgroup2 -o nsdelegate cgroup /sys/fs/cgroup
mount -t securityfs securityfs /sys/kernel/security
ip link set lo up
hostname machine
mkdir -p /project
tar -xf /dev/vdb -C /project
# This shell stays process 1: it collects what the commands leave behind.
python3 -I /project/tests/vm/obey.py /dev/vport0p1
echo o >/proc/sysrq-trigger
while :; do sleep 60; done
