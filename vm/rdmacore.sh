#!/bin/sh
# The tool on the kernel's Soft-RoCE, through rdma-core: against rdma-core's own programs on the same device, against the software device in the
# namespace `soft`, and what it says where it cannot be used.
#
#   rdmacore.sh                 all of it but the suite
#   rdmacore.sh PART...         parts of it: local (the C programs), soft (the software device), perf, extended (work requests and completions by
#                               calls of the library), transports, watch (addresses that change), cache (of address handles), errors, faults
#                               (what Soft-RoCE gets wrong, shown with the library alone), removal (of the device while it is in use),
#                               conformance (the suite, all of it), across (the suite with an end on rxe and one on the software device, each as the
#                               one that asks, and what of it carries data over a cable that loses packets)
#   rdmacore.sh suite FILTER    the cases of the suite whose name contains the text
. "${0%/*}/lib.sh"

gid_4=$(gid_index rxe0 $RXE_IP4) gid_6=$(gid_index rxe0 $RXE_IP6)
port=19000

# both TRANSPORT FAMILY OPTIONS: the C program and ours, each as the server, on one device.
both() {
  eval "gid=\$gid_$2"
  port=$((port + 1))
  c="ibv_$1_pingpong -d rxe0 -g $gid -p $port $3"
  ours="ferroce pingpong $1 -d rxe0 -g $gid -p $port $3"
  pair "$1 ipv$2 C to ferroce: $3" "$ours" tcp:$port "$c $RXE_IP4"
  pair "$1 ipv$2 ferroce to C: $3" "$c" tcp:$port "$ours $RXE_IP4"
}

# across TRANSPORT FAMILY OPTIONS: rxe and the software device, each as the server.
across() {
  eval "address=\$RXE_IP$2 soft=\$SOFT_IP$2"
  port=$((port + 1))
  rxe="ferroce pingpong $1 -d rxe0 -g $address -p $port $3"
  ours="$IN_SOFT $AS_NOBODY ferroce pingpong $1 -g $soft -p $port $3"
  pair "$1 ipv$2 soft to rxe: $3" "$rxe" tcp:$port "$ours $RXE_IP4"
  pair "$1 ipv$2 rxe to soft: $3" "$ours" soft-tcp:$port "$rxe $SOFT_IP4"
}

part_local() {
  for transport in rc uc srq; do
    for options in "-c -s 1 -n 200" "-c -s 65537 -n 20" "-c -e -s 1024 -n 50"; do
      both $transport 4 "$options"
    done
    both $transport 6 "-c -s 4096 -n 50"
  done
  both ud 4 "-c -s 1 -n 200"
  both ud 4 "-c -e -s 1024 -n 50"
  both ud 6 "-c -s 1024 -n 50"
}

part_soft() {
  for family in 4 6; do
    for transport in rc uc srq; do
      across $transport $family "-c -s 1 -n 200"
      across $transport $family "-c -s 65537 -n 20"
    done
    across ud $family "-c -s 1024 -n 200"
  done
}

part_perf() {
  for op in send write read atomic; do
    case_of "perf $op on rxe" "ferroce perf $op --lat --local -d rxe0 -n 200"
    printed client "link device" || fail "perf $op says what carries it" "it does not" client
  done
  port=$((port + 1))
  pair "perf from soft to rxe" "ferroce perf write --bw -d rxe0 -p $port" tcp:$port \
    "$IN_SOFT $AS_NOBODY ferroce perf write --bw -p $port -n 50 $RXE_IP4"
}

part_extended() { case_of "requests and completions by calls" "/payload/extended rxe0 $RXE_IP4"; }

part_transports() {
  for transport in rc_verbs ud_verbs; do
    case_of "$transport on rxe" "ferroce perf am --lat --local -d rxe0 --transport $transport -n 100"
    case_of "$transport on rxe: rate" "ferroce perf am --rate --local -d rxe0 --transport $transport -n 1000"
    port=$((port + 1))
    pair "$transport from soft to rxe" "ferroce perf am --lat -d rxe0 --transport $transport -p $port" tcp:$port \
      "$IN_SOFT $AS_NOBODY ferroce perf am --lat --transport $transport -p $port -n 100 $RXE_IP4"
    port=$((port + 1))
    pair "$transport from rxe to soft" "$IN_SOFT $AS_NOBODY ferroce perf am --lat --transport $transport -p $port" soft-tcp:$port \
      "ferroce perf am --lat -d rxe0 --transport $transport -p $port -n 100 $SOFT_IP4"
  done
  for op in put get atomic; do
    case_of "rc_verbs on rxe: $op" "ferroce perf $op --lat --local -d rxe0 --transport rc_verbs -n 100"
  done
}

# told NAME TEXT: what watches addresses has said so since `start`.
told() {
  if await 10 printed client "$2"; then pass "$1"; else fail "$1" "it was not told: $2" client; fi
}

part_watch() {
  cable=$(cat /sys/class/net/v0/ifindex)
  mac=$($IN_SOFT cat /sys/class/net/v1/address)
  limit=60
  start client "/payload/rdmacore watch rxe0 $RXE_IP4 $SOFT_IP4"
  # As Rust prints the bytes of an array.
  # shellcheck disable=SC2046 # six words
  bytes=$(printf '[%d, %d, %d, %d, %d, %d]' $(echo "0x$mac" | sed 's/:/ 0x/g'))
  told "an address handle has the neighbour's MAC" "ifindex: $cable, next_hop: $SOFT_IP4, mac: Some($bytes)"
  ip neigh replace $SOFT_IP4 lladdr 02:00:00:00:00:09 dev v0 nud permanent
  told "a neighbour that moves is told" "Neighbour { ifindex: $cable, ip: $SOFT_IP4, mac: Some([2, 0, 0, 0, 0, 9])"
  ip neigh del $SOFT_IP4 dev v0
  told "a neighbour that goes is told" "Neighbour { ifindex: $cable, ip: $SOFT_IP4, mac: None }"
  ip addr add 10.77.0.77/24 dev v0
  told "an address that comes is told" "gid: Gid(::ffff:10.77.0.77)"
  ip addr del 10.77.0.77/24 dev v0
  ip link set v0 down
  told "a port that goes down is told" "Port { port: 1 }"
  ip link set v0 up
  ip addr replace $RXE_IP6/64 dev v0 nodad
  stop client
  await 10 gid_index rxe0 $RXE_IP6 >/dev/null || fail "rxe0 comes back" "it does not"
  gid_4=$(gid_index rxe0 $RXE_IP4) gid_6=$(gid_index rxe0 $RXE_IP6)
}

leases() { grep -c '^lease ' "$dir/client.log"; }
more_leases() { [ "$(leases)" -gt "$1" ]; }

# renewed BEFORE CHANGE: of a change the cache was told, and gives out another address handle than those BEFORE, which live.
renewed() {
  await 15 more_leases "$1" || { fail "resolved again: $2" "it is not" client; return; }
  count=$(leases)
  if printed client "lease $count, $count address handles live"; then pass "resolved again: $2"; else fail "resolved again: $2" "not all leases live" client; fi
}

# The cache of address handles, from the kernel's change to the next lease. How many there are of one change is up to the kernel, which tells of the
# neighbour, of addresses and of the port by themselves.
part_cache() {
  limit=120
  start client "/payload/rdmacore cache rxe0 $RXE_IP4 $SOFT_IP4"
  renewed 0 "for the first time"
  sleep 1
  before=$(leases)
  ip neigh replace $SOFT_IP4 lladdr 02:00:00:00:00:09 dev v0 nud permanent
  renewed "$before" "a neighbour has another MAC"
  printed client "mac: Some([2, 0, 0, 0, 0, 9])" || fail "the new address handle has that MAC" "it does not" client
  sleep 1
  before=$(leases)
  sleep 1
  if more_leases "$before"; then fail "a lease lasts while nothing changes" "it does not" client; else pass "a lease lasts while nothing changes"; fi
  ip neigh del $SOFT_IP4 dev v0
  renewed "$before" "a neighbour is forgotten"
  sleep 1
  before=$(leases)
  ip addr del $RXE_IP4/24 dev v0
  await 10 printed client "failed:" || fail "there is no address handle without a GID" "there is" client
  ip addr add $RXE_IP4/24 dev v0
  renewed "$before" "the GID comes back"
  sleep 1
  ip link set v0 down
  sleep 1
  before=$(leases)
  ip link set v0 up
  renewed "$before" "the port comes back"
  stop client
  ip addr replace $RXE_IP6/64 dev v0 nodad
  await 10 gid_index rxe0 $RXE_IP6 >/dev/null || fail "rxe0 comes back" "it does not"
  gid_4=$(gid_index rxe0 $RXE_IP4) gid_6=$(gid_index rxe0 $RXE_IP6)
}

# says NAME TEXT COMMAND: it fails, and says so.
says() {
  start client "$3"
  await $((limit + 5)) ended client || stop client
  if [ "$(status client)" = 3 ] && printed client "$2"; then pass "$1"; else fail "$1" "status $(status client)" client; fi
}

part_errors() {
  case_of "info shows rxe0" "ferroce info --device rxe0"
  for text in "provider rdma-core" "::ffff:$RXE_IP4" "port 1: active, Ethernet, MTU 1024 of 4096" "nothing is missing"; do
    if printed client "$text"; then pass "info says: $text"; else fail "info says: $text" "it does not" client; fi
  done
  case_of "info lists both devices" "ferroce info"
  for text in "device soft0" "device rxe0"; do
    if printed client "$text"; then pass "info says: $text"; else fail "info says: $text" "it does not" client; fi
  done
  case_of "info shows counters" "ferroce info --device rxe0 --counters"
  if printed client rcvd_pkts; then pass "info says: rcvd_pkts"; else fail "info says: rcvd_pkts" "it does not" client; fi
  case_of "the variable names the device" "env FERROCE_DEVICE=rxe0 ferroce info"

  says "an unknown device is refused with a list" "this machine has soft0, rxe0" "ferroce info --device rxe7"
  says "no library" "cannot be loaded" "env FERROCE_LIBIBVERBS=/nowhere/libibverbs.so.1 ferroce info --device rxe0"
  says "a provider without locks" "unset it" "env MLX5_SINGLE_THREADED=1 ferroce info --device rxe0"
  # The file stays as it is for everybody else.
  chmod 600 /dev/infiniband/uverbs0
  says "no permission on the device file" "no permission to open /dev/infiniband/uverbs0" "$AS_NOBODY ferroce info --device rxe0"
  chmod 666 /dev/infiniband/uverbs0
  case_of "permission on the device file is enough" "$AS_NOBODY ferroce info --device rxe0"
  mv /dev/infiniband /dev/infiniband.away
  says "no device file" "has no file /dev/infiniband/uverbs0" "ferroce info --device rxe0"
  mv /dev/infiniband.away /dev/infiniband
  case_of "nobody else minds a missing file" "$IN_SOFT $AS_NOBODY ferroce info"
  rdma link del rxe0
  says "no device" "the kernel has no RDMA device" "ferroce info --device rxe0"
  case_of "the software device needs none" "$IN_SOFT $AS_NOBODY ferroce info"
  rdma link add rxe0 type rxe netdev v0
  await 10 gid_index rxe0 $RXE_IP6 >/dev/null || fail "rxe0 comes back" "it does not"
}

# Each fault, and the list of what the suite leaves out, which names them.
part_faults() {
  case_of "Soft-RoCE's faults are shown with the library alone" "/payload/rxe_faults rxe0 $RXE_IP4"
  cat "$dir/client.log"
  shown=$(sed -n 's/^\(SHOWN\|LEFT\) \([^:]*\):.*/\2/p' "$dir/client.log" | sort)
  named=$(/payload/rdmacore faults | sort)
  if [ -n "$shown" ] && [ "$shown" = "$named" ]; then
    pass "the cases that are left out name the faults that are shown"
  else
    fail "the cases that are left out name the faults that are shown" "named are $(echo "$named" | tr '\n' ' ')"
  fi
}

in_use() { rdma resource show qp | grep -q 'type RC state RTS'; }
sent() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts; }

# Soft-RoCE of this kernel has no way to take itself away from programs (`disassociate_ucontext`): who removes the device waits for them.
# They notice nothing, and nobody new gets in.
part_removal() {
  start load "ferroce perf write --bw --local -d rxe0 -n 100000000"
  if ! await "$ready_limit" in_use; then
    fail "the device is in use" "no queue pair can send" load
    stop load
    return
  fi
  start removal "rdma link del rxe0"
  sleep 3
  if ended removal; then fail "the removal waits for the device's user" "it is over" removal; else pass "the removal waits for the device's user"; fi
  before=$(sent)
  sleep 1
  if ended load || [ "$(sent)" = "$before" ]; then fail "the user goes on" "it does not" load; else pass "the user goes on"; fi
  says "nobody new gets in" "the kernel has no RDMA device" "ferroce info --device rxe0"
  stop load
  if await 20 ended removal; then pass "the device goes with its last user"; else fail "the device goes with its last user" "it stays" removal; fi
  rdma link add rxe0 type rxe netdev v0
  await 10 gid_index rxe0 $RXE_IP6 >/dev/null || fail "rxe0 comes back" "it does not"
}

# The program prints the cases as this script does. Jumbo frames carry every MTU that there is.
part_conformance() { suite; }
suite() { with_jumbo_frames /payload/rdmacore suite rxe0 $RXE_IP4 "$@"; }
with_jumbo_frames() {
  ip link set v0 mtu 9000
  $IN_SOFT ip link set v1 mtu 9000
  if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
  ip link set v0 mtu 1500
  $IN_SOFT ip link set v1 mtu 1500
}

# RDMA devices are seen from all namespaces, so one process can have an end on each.
part_across() {
  soft_to_rxe="soft $SOFT_IP4 rxe0 $RXE_IP4"
  rxe_to_soft="rxe0 $RXE_IP4 soft $SOFT_IP4"
  across="with_jumbo_frames $IN_SOFT $AS_NOBODY /payload/rdmacore across"
  $across $soft_to_rxe
  $across $rxe_to_soft
  # The kernel's requester sends all of a message anew for each packet that is lost, so it does without those of many packets.
  loss_on 5
  $across $soft_to_rxe data/rc/
  $across $rxe_to_soft 'data/rc/*mtu4096'
  if lost_both 20; then pass "across: $(lost_near) and $(lost_far) packets were lost"; else fail "across: packets were lost" "too few were"; fi
  loss_end
}

if [ "$1" = suite ]; then
  shift
  suite "$@"
  finish
fi
[ $# = 0 ] && set -- local soft perf extended transports watch cache errors faults removal
for part; do part_$part; done
finish
