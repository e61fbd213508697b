#!/bin/sh
# The first process of a test engine: it stands in mount, pid and (but for building) network namespaces of its own, lays
# out the engine's tree, and becomes the engine. All of it goes when this process is killed.
# usage: enter.sh TREE WORK PROJECT DOCKERD-OPTION...
set -eu
tree=$1 work=$2 project=$3
shift 3
mount --make-rprivate /
mount --bind "$tree" "$tree"
mount -t proc proc "$tree/proc"
mount --rbind /sys "$tree/sys"
mount --rbind /dev "$tree/dev"
mount -t tmpfs -o mode=755 run "$tree/run"
mount -t tmpfs -o mode=1777 tmp "$tree/tmp"
mkdir -p "$tree/run/work" "$tree/run/project"
mount --bind "$work" "$tree/run/work"
mount --bind -o ro "$project" "$tree/run/project"
mount --bind "$(readlink -f /etc/resolv.conf)" "$tree/etc/resolv.conf"
ip link set lo up
# Not chroot: the kernel gives no user namespace to whoever stands in one (user_namespaces(7)).
cd "$tree"
mkdir -p run/outside
pivot_root . run/outside
exec /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 sh -c '
    umount -l /run/outside && rmdir /run/outside && exec docker-init -- "$@"' sh \
    dockerd --data-root /run/work/data --exec-root /run/docker --pidfile /run/docker.pid --host unix:///run/docker.sock "$@"
