#!/bin/sh
# ibv_*_pingpong on the kernel's Soft-RoCE against `ferroce pingpong` in the namespace `soft`: every transport, each side as the server, both kinds of
# address, sizes around packet boundaries, events, other MTUs, and loss.
#
#   pingpong.sh                 the matrix
#   pingpong.sh PART...         parts of it: connected (RC and UC), srq, ud, options (events, other MTUs), loss
#   pingpong.sh selftest        a few cases of each part with the C programs at both ends, to prove the harness
#   pingpong.sh selftest full   all cases like that
#
# KERNEL_PINGPONG and SOFT_PINGPONG name the programs (% is the transport), SOFT_RUN what runs the one in `soft`.
. "${0%/*}/lib.sh"

KERNEL_PINGPONG=${KERNEL_PINGPONG:-ibv_%_pingpong}
SOFT_PINGPONG=${SOFT_PINGPONG:-ferroce pingpong %}
# An ordinary user: the device must not need any privilege.
SOFT_RUN=${SOFT_RUN-$IN_SOFT $AS_NOBODY}

# The kernel's end of the cable, and the soft one. QP numbers are always exchanged over IPv4.
kernel_device=rxe0 kernel_4=$RXE_IP4 kernel_6=$RXE_IP6 kernel_host=$RXE_IP4
soft_4=$SOFT_IP4 soft_6=$SOFT_IP6 soft_host=$SOFT_IP4 soft_ready=soft-tcp soft_ip="$IN_SOFT ip"

# A second cable for the self-test. Both ends are in the initial namespace, the only one that rxe of Linux 6.1 serves, and still packets take the
# cable: local addresses are local only to what comes in.
second_cable() {
  near_end=v2 far_end=v3 far_tc=tc
  kernel_device=rxe2 kernel_4=10.78.0.1 kernel_6=fd78::1 kernel_host=127.0.0.1
  soft_device=rxe3 soft_4=10.78.0.2 soft_6=fd78::2 soft_host=127.0.0.1 soft_ready=tcp soft_ip=ip
  ip link show v2 >/dev/null 2>&1 && return
  ip link add v2 type veth peer name v3
  for end in v2:1:2 v3:2:1; do
    this=${end%%:*} own=${end#*:} other=${end##*:}
    own=${own%:*}
    echo 1 >/proc/sys/net/ipv4/conf/$this/accept_local
    ip addr add 10.78.0.$own/32 dev $this
    ip addr add fd78::$own/128 dev $this nodad
    ip link set $this up
    ip route add 10.78.0.$other dev $this src 10.78.0.$own table 78
    ip -6 route add fd78::$other dev $this src fd78::$own table 78
  done
  for family in -4 -6; do
    ip $family rule add pref 1 iif v2 lookup local
    ip $family rule add pref 1 iif v3 lookup local
    ip $family rule add pref 2 lookup 78
    ip $family rule add pref 3 lookup local
    ip $family rule del pref 0
  done
  rdma link add rxe2 type rxe netdev v2
  rdma link add rxe3 type rxe netdev v3
  await 10 gid_index rxe3 fd78::2 >/dev/null && await 10 gid_index rxe2 fd78::1 >/dev/null
}

# Sets kernel_gid_4, kernel_gid_6 and, in the self-test, the same for the soft side. The tables do not change any more.
find_gids() {
  for family in 4 6; do
    eval "address=\$kernel_$family"
    eval "kernel_gid_$family=$(gid_index $kernel_device "$address")"
    eval "address=\$soft_$family"
    # `ferroce` takes the address itself.
    if [ -n "$selftest" ]; then address=$(gid_index $soft_device "$address"); fi
    eval "soft_gid_$family=$address"
  done
}

# Sets `command` to that of one side. Arguments: transport, IP family, options, the server's address if this is the client.
kernel_side() {
  eval "gid=\$kernel_gid_$2"
  command="$(program "$KERNEL_PINGPONG" "$1") -d $kernel_device -g $gid -p $port $3 $4"
}
soft_side() {
  eval "gid=\$soft_gid_$2"
  if [ -n "$selftest" ]; then
    command="$(program "$KERNEL_PINGPONG" "$1") -d $soft_device -g $gid -p $port $3 $4"
  else
    command="$SOFT_RUN $(program "$SOFT_PINGPONG" "$1") -g $gid -p $port $3 $4"
  fi
}
program() { echo "${1%%\%*}$2${1#*%}"; }

# exchange TRANSPORT FAMILY OPTIONS [NOTE]: one case with each side as the server.
port=18515
exchange() {
  one_way "soft to kernel" "tcp" kernel_side soft_side $kernel_host "$@"
  one_way "kernel to soft" $soft_ready soft_side kernel_side $soft_host "$@"
}
one_way() {
  port=$((port + 1))
  $3 "$6" "$7" "$8"
  server=$command
  $4 "$6" "$7" "$8" "$5"
  pair "$6 ipv$7 $1: $8$9" "$server" "$2:$port" "$command"
}

# matrix TRANSPORT SIZE:ITERATIONS...: both families, data checked.
matrix() {
  transport=$1
  shift
  for family in 4 6; do
    for pairing in "$@"; do
      exchange $transport $family "-c -s ${pairing%:*} -n ${pairing#*:}"
    done
  done
}

set_mtu() {
  ip link set $near_end mtu "$1"
  $soft_ip link set $far_end mtu "$1"
}

# Loss ends while the exchange goes on, after a fixed number of packets has been lost in each direction: the programs leave as soon as they are done,
# and an acknowledgement lost at that moment leaves the other side without an answer for ever. That is how they are, not a fault.
losses=5
lose_some() {
  loss_on 2
  await 90 lost_enough
  lost_both $losses || echo "only $(lost_near) and $(lost_far) packets were lost"
  loss_off
}
lost_enough() { lost_both $losses || ended client; }

# lossy FAMILY SIZE:ITERATIONS...
lossy() {
  family=$1
  shift
  during=lose_some
  limit=180
  for pairing in "$@"; do
    exchange rc "$family" "-c -s ${pairing%:*} -n ${pairing#*:}" ", 2 % loss"
  done
  during=
  limit=90
  loss_end
}

# Requests that the kernel received out of sequence, and packets that it dropped because a processor had too many.
out_of_sequence() { cat /sys/class/infiniband/$kernel_device/ports/1/hw_counters/out_of_seq_request; }
dropped_by_kernel() {
  sum=0
  while read -r _ dropped _; do sum=$((sum + 0x$dropped)); done </proc/net/softnet_stat
  echo $sum
}

# The cable neither loses nor reorders by itself, so what is out of sequence was sent like that; RC hides it, at the cost of repetitions.
in_sequence() {
  received=$(($(out_of_sequence) - received_before)) dropped=$(($(dropped_by_kernel) - dropped_before))
  if [ $received = 0 ] || [ $dropped != 0 ]; then
    pass "requests reach the kernel in sequence"
  else
    fail "requests reach the kernel in sequence" "$received did not"
  fi
}

selftest=
if [ "$1" = selftest ]; then
  selftest=yes
  second_cable || { fail "the self-test's cable" "it cannot be set up"; finish; }
else
  soft_program=${SOFT_PINGPONG%% *}
  command -v "$soft_program" >/dev/null || { fail "the matrix" "there is no program $soft_program"; finish; }
fi

find_gids

if [ "$1 $2" = "selftest " ]; then
  for transport in rc uc srq; do
    matrix $transport 65537:10
  done
  matrix ud 1021:100
  lossy 4 65537:100
  finish
fi

part_connected() {
  matrix rc 1:500 1021:500 4096:200 65537:50 1048576:10
  matrix uc 1:500 1021:500 4096:200 65537:50 1048576:10
}

part_srq() {
  # Over 16 QPs, which share the number of exchanges, whatever the C program's usage text says.
  matrix srq 1:300 1021:300 4096:200 65537:50
  # More such messages at a time would take the emulated machine longer than the time after which both sides repeat what was not acknowledged.
  for family in 4 6; do
    exchange srq $family "-c -q 2 -s 1048576 -n 10"
  done
}

# A message is one packet.
part_ud() {
  matrix ud 1:500 1021:500 1024:500
}

part_options() {
  for transport in rc uc srq ud; do
    exchange $transport 4 "-c -e -s 1024 -n 50"
  done
  exchange rc 4 "-c -m 256 -s 65537 -n 50"
  exchange rc 6 "-c -m 512 -s 65537 -n 50"
  # Jumbo frames carry the largest MTU that there is.
  set_mtu 9000
  exchange rc 4 "-c -m 4096 -s 65537 -n 50"
  exchange rc 6 "-c -m 4096 -s 1048576 -n 10"
  set_mtu 1500
}

part_loss() {
  lossy 4 1021:2000 65537:100
  lossy 6 1021:2000 65537:100
}

[ $# = 0 ] && set -- connected srq ud options loss
received_before=$(out_of_sequence) dropped_before=$(dropped_by_kernel)
for part; do
  # Once packets are lost on purpose, nothing is said about the order of the rest.
  if [ $part = loss ]; then in_sequence; fi
  part_$part
done
case " $* " in *" loss "*) ;; *) in_sequence ;; esac
finish
