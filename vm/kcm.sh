#!/bin/sh
# The kernel's connection manager behind `ferroce`, on Soft-RoCE: against rdma-core's programs on the same device, against itself, against the
# software device in the namespace `soft`, and what it says where it cannot be used.
#
#   kcm.sh            all of it
#   kcm.sh PART...    parts of it: rping, cmatose, udaddy (datagrams), mckey (multicast), cmtime, soft (the software device), refused
#                     (nobody listens), cases (those of ferroce-cm/tests/cases), storm, errors, removed (the device goes away);
#                     cases=TEXT are those whose name contains the text, storm=20000 is a storm of so many connections
. "${0%/*}/lib.sh"

# An ordinary user: the device files are for everybody.
rxe="$AS_NOBODY ferroce"
soft="$IN_SOFT $AS_NOBODY ferroce"

# Waits for the listeners of the case before to go: ours must not be taken for ready by theirs.
quiet() { await 10 no_listener || fail "the case before is over" "it has a listener"; }
no_listener() { ! cm_listens; }

# addresses FAMILY: names those of a family.
addresses() {
  case $1 in
    4) here=$RXE_IP4 there=$SOFT_IP4 ;;
    6) here=$RXE_IP6 there=$SOFT_IP6 ;;
  esac
}

part_rping() {
  for family in 4 6; do
    addresses $family
    quiet
    pair "rping ipv$family ferroce to C: 100 pings" "$RPING -s -a $here -C 100 -V" cm "$rxe rping -d rxe0 -c -a $here -C 100 -V"
    quiet
    pair "rping ipv$family C to ferroce: 100 pings" "$rxe rping -d rxe0 -s -a $here" cm "$RPING -c -a $here -C 100 -V"
  done
  quiet
  pair "rping ferroce to ferroce: 65535 bytes" "$rxe rping -d rxe0 -s -S 65535" cm "$rxe rping -d rxe0 -c -a $RXE_IP4 -C 20 -V -S 65535"
  endless_server=yes
  quiet
  pair "rping: 32 C clients of one server at once" "$rxe rping -d rxe0 -s -P" cm "/vm/cm.sh clients 32 0 $RPING -c -a $RXE_IP4 -C 5 -V"
  quiet
  endless_server=
}

part_cmatose() {
  quiet
  pair "cmatose ferroce to C: 100 connections" "ucmatose -b $RXE_IP4 -c 100" cm "$rxe cmatose -d rxe0 -s $RXE_IP4 -c 100"
  quiet
  pair "cmatose C to ferroce: 100 connections" "$rxe cmatose -d rxe0 -c 100" cm "ucmatose -s $RXE_IP4 -c 100"
  quiet
  pair "cmatose ipv6 ferroce to C" "ucmatose -b $RXE_IP6 -c 10" cm "$rxe cmatose -d rxe0 -s $RXE_IP6 -c 10"
}

part_udaddy() {
  for family in 4 6; do
    addresses $family
    quiet
    pair "udaddy ipv$family ferroce to C" "udaddy -b $here" cm "$rxe udaddy -d rxe0 -s $here"
    quiet
    pair "udaddy ipv$family C to ferroce" "$rxe udaddy -d rxe0 -b $here" cm "udaddy -s $here"
  done
  quiet
  pair "udaddy ferroce to ferroce: 10 queue pairs" "$rxe udaddy -d rxe0 -c 10 -S 1024" cm "$rxe udaddy -d rxe0 -s $RXE_IP4 -c 10 -S 1024"
}

# rxe has no groups of IPv6.
part_mckey() {
  group=239.7.7.7
  pair "mckey ferroce to C" "stdbuf -oL mckey -m $group -b $RXE_IP4" "line:joined dgid" "$rxe mckey -d rxe0 -m $group -b $RXE_IP4 -s"
  pair "mckey C to ferroce" "$rxe mckey -d rxe0 -m $group -b $RXE_IP4" "line:joined" "mckey -m $group -b $RXE_IP4 -s"
}

part_cmtime() {
  endless_server=yes
  quiet
  pair "cmtime ferroce to C: 100 connections" "cmtime -b $RXE_IP4" cm "$rxe cmtime -d rxe0 -s $RXE_IP4 -c 100"
  endless_server=
  quiet
  pair "cmtime C to ferroce: 100 connections" "$rxe cmtime -d rxe0 --once -b $RXE_IP4 -c 100" "line:waiting" "cmtime -s $RXE_IP4 -c 100"
}

# The kernel's protocol against our own.
part_soft() {
  for family in 4 6; do
    addresses $family
    quiet
    pair "rping ipv$family soft to rxe" "$rxe rping -d rxe0 -s -a $here" cm "$soft rping -c -a $here -C 100 -V"
    pair "rping ipv$family rxe to soft" "$soft rping -s -a $there" "line:waiting" "$rxe rping -d rxe0 -c -a $there -C 100 -V"
  done
  quiet
  pair "cmatose soft to rxe: 50 connections" "$rxe cmatose -d rxe0 -c 50" cm "$soft cmatose -s $RXE_IP4 -c 50"
  pair "cmatose rxe to soft: 50 connections" "$soft cmatose -c 50" "line:waiting" "$rxe cmatose -d rxe0 -s $SOFT_IP4 -c 50"
  quiet
  pair "udaddy soft to rxe" "$rxe udaddy -d rxe0" cm "$soft udaddy -s $RXE_IP4"
  pair "udaddy rxe to soft" "$soft udaddy" "line:waiting" "$rxe udaddy -d rxe0 -s $SOFT_IP4"
  pair "cmtime soft to rxe: 100 connections" "$rxe cmtime -d rxe0 --once -b $RXE_IP4 -c 100" "line:waiting" "$soft cmtime -s $RXE_IP4 -c 100"
  pair "cmtime rxe to soft: 100 connections" "$soft cmtime --once -c 100" "line:waiting" "$rxe cmtime -d rxe0 -s $SOFT_IP4 -c 100"
  cases=/payload/cmcases
  pair "refused with reasons: soft by rxe" "$AS_NOBODY $cases refuse rxe0 $RXE_IP4" "line:waiting" "$IN_SOFT $AS_NOBODY $cases refused soft $SOFT_IP4 $RXE_IP4"
  pair "refused with reasons: rxe by soft" "$IN_SOFT $AS_NOBODY $cases refuse soft $SOFT_IP4" "line:waiting" "$AS_NOBODY $cases refused rxe0 $RXE_IP4 $SOFT_IP4"
}

# says NAME STATUS TEXT COMMAND: it fails so, and says so.
says() {
  start client "$4"
  await $((limit + 5)) ended client || stop client
  if [ "$(status client)" = "$2" ] && printed client "$3"; then pass "$1"; else fail "$1" "status $(status client)" client; fi
}

part_refused() {
  says "nobody listens" 1 "nobody listens" "$rxe rping -d rxe0 -c -a $RXE_IP4 -p 7199 -C 1"
  says "nobody serves datagrams" 1 "nobody listens" "$rxe udaddy -d rxe0 -s $RXE_IP4 -p 7199"
  says "there is no such host" 1 "10.77.0.99" "$rxe rping -d rxe0 -c -a 10.77.0.99 -C 1"
  says "the address is nobody's" 3 "no such address" "$rxe rping -d rxe0 -s -a 10.77.0.77"
  quiet
  start server "$rxe rping -d rxe0 -s -a $RXE_IP4"
  await 10 cm_listens
  says "somebody listens there" 3 "another listener" "$rxe rping -d rxe0 -s -a $RXE_IP4"
  stop server
}

# The kernel has nothing of anybody, but the queue pairs of its own management. From those that have ended it takes all away: what programs leave
# while they live they find themselves.
nothing_left() {
  ids=$(rdma resource show cm_id) && qps=$(rdma resource show qp) || return 1
  [ -z "$ids" ] && ! echo "$qps" | grep -v "type [GS][SM]I" | grep -q .
}
clean() { if await 20 nothing_left; then pass "$1"; else fail "$1" "$(rdma resource show cm_id | wc -l) ids, $(rdma resource show qp | wc -l) queue pairs"; fi; }

# storm [CONNECTIONS]
part_storm() {
  count=${1:-2000}
  limit=$((120 + count / 16))
  case_of "storm of $count connections" "$rxe storm --device rxe0 -n $count --cancel 10 --io-threads 2"
  tail -n 4 "$dir/client.log"
  clean "the kernel has nothing left of it"
  limit=90
}

part_cases() {
  if $AS_NOBODY /payload/cmcases cases rxe0 $RXE_IP4 $1; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
  clean "nothing is left of the cases"
}

part_errors() {
  try="rping -d rxe0 -s"
  chmod 600 /dev/infiniband/rdma_cm
  says "no permission on the device file" 3 "no permission to open /dev/infiniband/rdma_cm" "$rxe $try"
  chmod 666 /dev/infiniband/rdma_cm
  mv /dev/infiniband/rdma_cm /dev/infiniband/away
  says "no device file" 3 "has no file /dev/infiniband/rdma_cm" "$rxe $try"
  mv /dev/infiniband/away /dev/infiniband/rdma_cm
  says "no library" 3 "cannot be loaded" "env FERROCE_LIBIBVERBS=/nowhere/libibverbs.so.1 ferroce $try"
  says "no device" 3 "no device rxe7" "$rxe rping -d rxe7 -s"
  dev=$(cat /sys/class/misc/rdma_cm/dev) minor=${dev#*:}
  rmmod rdma_ucm
  says "no module" 3 "modprobe rdma_ucm" "$rxe $try"
  # As where device files are not made by the kernel.
  mknod -m 666 /dev/infiniband/rdma_cm c 10 "$minor"
  says "no module, and a file" 3 "modprobe rdma_ucm" "$rxe $try"
  rm /dev/infiniband/rdma_cm
  while read -r module; do case $module in *rdma_ucm*) insmod "/modules/$module" ;; esac; done </modules/order
  [ -e /dev/infiniband/rdma_cm ] && chmod 666 /dev/infiniband/rdma_cm
  quiet
  pair "the module is back" "$rxe rping -d rxe0 -s" cm "$rxe rping -d rxe0 -c -a $RXE_IP4 -C 3"
}

part_removed() {
  start client "/payload/cmcases removed rxe0 $RXE_IP4"
  await 30 printed client ready || fail "the device is in use" "it is not" client
  rdma link del rxe0 &
  remover=$!
  if await 60 ended client && [ "$(status client)" = 0 ]; then pass "the device goes away under load"; else fail "the device goes away under load" "status $(status client)" client; fi
  wait $remover
  rdma link add rxe0 type rxe netdev v0
  await 20 gid_index rxe0 $RXE_IP4 >/dev/null 2>&1 || fail "rxe0 comes back" "it does not"
}

[ $# = 0 ] && set -- rping cmatose udaddy mckey cmtime soft refused cases storm errors removed
for part; do
  case $part in
    storm=*) part_storm "${part#*=}" ;;
    cases=*) part_cases "${part#*=}" ;;
    *) part_$part ;;
  esac
done
finish
