#!/usr/bin/dash
# The first process of the kernel test bed: loads the modules, sets up the network, runs the scripts that /vm/plan names, switches off.
#
# The kernel writes to the first serial port. The second one carries what the scripts print and, between it, lines that begin with ## and a nonce
# (see `protocol` in xtask): xtask follows the run by them.

/busybox/busybox --install -s /busybox
export PATH=/usr/bin:/busybox HOME=/root TERM=dumb

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/netns

exec </dev/null >/dev/ttyS1 2>&1
stty -F /dev/ttyS1 raw -echo
nonce=$(cat /vm/nonce)
say() { printf '\n##%s %s\n' "$nonce" "$*"; }
# A line in the kernel's log, at the level of a warning so that the console shows it.
section() { echo "<4>ferroce-vm: $*" >/dev/kmsg; }
fatal() {
  echo "init: $*"
  dmesg | tail -n 20
  poweroff -f
}

# RDMA pins memory, and scripts run programs that are not root.
ulimit -l unlimited
ulimit -c 0

while read -r module; do
  insmod "/modules/$module" || fatal "cannot load $module"
done </modules/order

# Unreliable transports have no flow control: a message has to fit the receiver's socket buffer.
echo 8388608 >/proc/sys/net/core/rmem_max

echo 16384 >/proc/sys/net/core/netdev_max_backlog

ip=/usr/bin/ip
# Addresses are used at once; nobody else can have them.
for all in all default; do echo 0 >"/proc/sys/net/ipv6/conf/$all/accept_dad"; done
$ip link set lo up
$ip netns add soft || fatal "cannot add the namespace"
$ip netns exec soft sh -c 'for all in all default; do echo 0 >"/proc/sys/net/ipv6/conf/$all/accept_dad"; done'
$ip -n soft link set lo up
$ip link add v0 type veth peer name v1 netns soft || fatal "cannot add the cable"
$ip addr add 10.77.0.1/24 dev v0
$ip addr add fd77::1/64 dev v0 nodad
$ip link set v0 up
# A cable keeps the order. This one queues packets at the processor that sends them, so those of a sender that moves to another processor could
# overtake each other, unless one processor takes in all.
echo 1 >/sys/class/net/v0/queues/rx-0/rps_cpus
$ip netns exec soft sh -c 'echo 1 >/sys/class/net/v1/queues/rx-0/rps_cpus'
$ip -n soft addr add 10.77.0.2/24 dev v1
$ip -n soft addr add fd77::2/64 dev v1 nodad
$ip -n soft link set v1 up
rdma link add rxe0 type rxe netdev v0 || fatal "cannot add rxe0"

# The device announces its addresses from a work queue.
rxe_is_ready() {
  case $(cat /sys/class/infiniband/rxe0/ports/1/state) in *ACTIVE*) ;; *) return 1 ;; esac
  gids=$(cat /sys/class/infiniband/rxe0/ports/1/gids/* 2>/dev/null)
  case $gids in *0000:ffff:0a4d:0001*) ;; *) return 1 ;; esac
  case $gids in *fd77:*) ;; *) return 1 ;; esac
}
tries=0
until rxe_is_ready; do
  tries=$((tries + 1))
  [ $tries -lt 100 ] || fatal "rxe0 does not become ready"
  sleep 0.1
done

read -r uptime _ </proc/uptime
say "ready $uptime"

index=0
while read -r seconds script args; do
  section "${script##*/} $args"
  say "begin $index"
  # shellcheck disable=SC2086 # the arguments are words
  (cd /tmp && exec setsid timeout -k 10 "$seconds" /usr/bin/dash "$script" $args) </dev/null
  status=$?
  section "after ${script##*/} $args"
  # Whatever it left behind: processes (all but this one), loss on the cable.
  kill -9 -1 2>/dev/null
  tc qdisc del dev v0 root 2>/dev/null
  $ip netns exec soft tc qdisc del dev v1 root 2>/dev/null
  say "end $index $status"
  index=$((index + 1))
done </vm/plan

section "shutdown"
say "bye"
poweroff -f
