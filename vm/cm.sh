#!/bin/sh
# The connection managers: librdmacm's programs over the kernel's ib_cm and Soft-RoCE against `ferroce` in the namespace `soft`, each side as the
# server, with both kinds of address.
#
#   cm.sh                     all parts
#   cm.sh PART...             rping (with many clients at once), cmatose (a hundred connections at once), udaddy (datagrams), mckey
#                             (multicast), cmtime (the steps of a connection), refused (nobody listens), killed (a peer is), restart (a peer
#                             comes back with the same queue pair numbers), loss, trace (what tshark thinks of the messages)
#   cm.sh clients COUNT PAUSE COMMAND...  runs it 32 times, so many at once, each begun so many seconds after the one before
clients() {
  count=$1 pause=$2
  shift 2
  said=$(mktemp -d)
  for _ in $(seq $((32 / count))); do
    pids=
    for _ in $(seq "$count"); do
      sh -c 'exec "$@" >"$0/$$" 2>&1' "$said" "$@" &
      pids="$pids $!"
      sleep "$pause"
    done
    for pid in $pids; do
      wait "$pid" || { echo "a client ended with status $?:"; cat "$said/$pid"; exit 1; }
    done
  done
  rm -r "$said"
}
if [ "$1" = clients ]; then shift; clients "$@"; exit; fi

. "${0%/*}/lib.sh"

# An ordinary user: the device must not need any privilege.
SOFT_RUN="$IN_SOFT $AS_NOBODY"
ferroce="$SOFT_RUN ferroce rping"
cmatose="$SOFT_RUN ferroce cmatose"
udaddy="$SOFT_RUN ferroce udaddy"
mckey="$SOFT_RUN ferroce mckey"
cmtime="$SOFT_RUN ferroce cmtime"

# A ping is four messages, a read and a write, and there are a thousand: two seconds on a machine, more in an emulated one.
limit=240

# Waits for the kernel's listeners of the case before to go: ours must not be taken for ready by theirs.
quiet() { await 10 no_listener; }
no_listener() { ! cm_listens; }

# addresses FAMILY: names those of a family.
addresses() {
  case $1 in
    4) kernel=$RXE_IP4 soft=$SOFT_IP4 any=0.0.0.0 ;;
    6) kernel=$RXE_IP6 soft=$SOFT_IP6 any=:: ;;
  esac
}

part_rping() {
  for family in 4 6; do
    addresses $family
    quiet
    pair "rping ipv$family soft to kernel: 1000 pings" "$RPING -s -a $kernel -C 1000 -V" cm "$ferroce -c -a $kernel -C 1000 -V"
    pair "rping ipv$family kernel to soft: 1000 pings" "$ferroce -s -a $any" "line:waiting" "$RPING -c -a $soft -C 1000 -V"
    quiet
    pair "rping ipv$family soft to kernel: 65535 bytes" "$RPING -s -a $kernel -C 20 -V -S 65535" cm "$ferroce -c -a $kernel -C 20 -V -S 65535"
    pair "rping ipv$family kernel to soft: 65535 bytes" "$ferroce -s -a $any -S 65535" "line:waiting" "$RPING -c -a $soft -C 20 -V -S 65535"
  done

  endless_server=yes
  quiet
  # The C program lets three requests wait, and keeps one at a time: of two that come together it takes the second twice (`child_cm_id` in its
  # rping.c), so they come one after the other, and the connections are open together.
  pair "rping soft to kernel: 32 clients of one server, 8 at once" "$RPING -s -P -a $RXE_IP4" cm "$0 clients 8 0.3 $ferroce -c -a $RXE_IP4 -C 5 -V"
  pair "rping kernel to soft: 32 clients of one server at once" "$ferroce -s -P" "line:waiting" "$0 clients 32 0 $RPING -c -a $SOFT_IP4 -C 5 -V"
  endless_server=
}

part_cmatose() {
  for family in 4 6; do
    addresses $family
    quiet
    pair "cmatose ipv$family soft to kernel: 100 connections" "ucmatose -b $kernel -c 100" cm "$cmatose -s $kernel -c 100"
    pair "cmatose ipv$family kernel to soft: 100 connections" "$cmatose -b $any -c 100" "line:waiting" "ucmatose -s $soft -c 100"
  done
  quiet
  pair "cmatose soft to kernel: 65536 bytes" "ucmatose -b $RXE_IP4 -c 3 -S 65536" cm "$cmatose -s $RXE_IP4 -c 3 -S 65536"
  pair "cmatose kernel to soft: connections only" "$cmatose -c 20 -C 0" "line:waiting" "ucmatose -s $SOFT_IP4 -c 20 -C 0"
}

part_udaddy() {
  for family in 4 6; do
    addresses $family
    quiet
    pair "udaddy ipv$family soft to kernel" "udaddy -b $kernel" cm "$udaddy -s $kernel"
    pair "udaddy ipv$family kernel to soft" "$udaddy -b $any" "line:waiting" "udaddy -s $soft"
    quiet
    pair "udaddy ipv$family soft to kernel: 10 queue pairs, 1024 bytes" "udaddy -b $kernel -c 10 -S 1024" cm "$udaddy -s $kernel -c 10 -S 1024"
    pair "udaddy ipv$family kernel to soft: 10 queue pairs, 1024 bytes" "$udaddy -b $any -c 10 -S 1024" "line:waiting" "udaddy -s $soft -c 10 -S 1024"
  done
}

part_cmtime() {
  for family in 4 6; do
    addresses $family
    endless_server=yes
    quiet
    pair "cmtime ipv$family soft to kernel: 100 connections" "cmtime -b $kernel" cm "$cmtime -s $kernel -c 100"
    endless_server=
    # The kernel's program succeeds whatever happens; ours ends once it has seen the end of a hundred connections.
    pair "cmtime ipv$family kernel to soft: 100 connections" "$cmtime --once -b $any -c 100" "line:waiting" "cmtime -s $soft -c 100"
  done
}

# refused NAME COMMAND TEXT: the command fails, and says why.
refused() {
  began=$(now)
  start client "$2"
  await 30 ended client || stop client
  if [ "$(status client)" != 0 ] && [ "$(status client)" != 124 ] && printed client "$3"; then
    pass "$1 ($(since "$began"))"
  else
    fail "$1" "status $(status client), wanted one that says: $3" client
  fi
}
part_refused() {
  refused "nobody listens at the kernel" "$ferroce -c -a $RXE_IP4 -p 7199 -C 1" "nobody listens"
  refused "nobody serves datagrams at the kernel" "$udaddy -s $RXE_IP4 -p 7199" "nobody listens"
  # The kernel's program prints the reason, 8, after the name of the event.
  start server "$ferroce -s -P"
  await 10 printed server waiting
  refused "nobody listens at the soft side" "rping -c -a $SOFT_IP4 -p 7199 -C 1" "RDMA_CM_EVENT_REJECTED, error 8"
  # What is refused over SIDR has its own numbers, and counts as not reached.
  refused "nobody serves datagrams at the soft side" "udaddy -s $SOFT_IP4" "RDMA_CM_EVENT_UNREACHABLE, error: 1"
  stop server
}

# A group of IPv4: rxe has none of IPv6. Datagrams are not repeated, so both ends are told to wait for little.
part_mckey() {
  quiet
  pair "mckey soft to kernel" "stdbuf -oL mckey -m $GROUP -b $RXE_IP4" "line:joined dgid" "$mckey -m $GROUP -b $SOFT_IP4 -s"
  pair "mckey kernel to soft" "$mckey -m $GROUP -b $SOFT_IP4" "line:joined" "mckey -m $GROUP -b $RXE_IP4 -s"
  pair "mckey soft to kernel: 1024 bytes, 4 queue pairs" "stdbuf -oL mckey -m $GROUP -b $RXE_IP4 -c 4 -S 1024" "line:joined dgid" \
    "$mckey -m $GROUP -b $SOFT_IP4 -s -o -S 1024"
  pair "mckey kernel to soft: 1024 bytes, 4 queue pairs" "$mckey -m $GROUP -b $SOFT_IP4 -c 4 -S 1024" "line:joined" \
    "mckey -m $GROUP -b $RXE_IP4 -s -o -S 1024"
  pair "mckey ipv6 soft to soft" "$mckey -m ff02::7:7 -b $SOFT_IP6" "line:joined" "$mckey -m ff02::7:7 -b $SOFT_IP6 -s"
}
GROUP=239.7.7.7


# A peer that is killed: our end is bounded, whether somebody says that it is gone or not, and whether or not we have something to send. (The
# kernel's programs wait for ever for a peer to which they have nothing to send.)
part_killed() {
  for how in "" " and nothing of it arrives"; do
    quiet
    start server "rping -s -a $RXE_IP4"
    await 10 cm_listens || fail "the kernel's program listens" "it does not" server
    start client "$SOFT_RUN env FERROCE_KEEPALIVE=1s FERROCE_LOG=ferroce_soft=debug ferroce rping -c -a $RXE_IP4"
    await 10 connected || fail "ours is connected" "it is not" server client
    # It counts on answers only where it has had one.
    await 30 printed client "sign of life" || fail "the kernel's program has answered" "it has not" server client
    [ -z "$how" ] || loss_on 100
    kill -9 $(pidof rping)
    if await 60 ended client; then pass "the kernel's program is killed$how, ours ends"; else fail "the kernel's program is killed$how, ours ends" "it does not" client; fi
    [ -z "$how" ] || loss_end
    stop server
  done
}

# The kernel has a queue pair of a program's that is connected.
connected() { rdma resource show qp | grep -q "type RC state RTS"; }
not_connected() { ! connected; }

# number_of ID FIELD: the number of the connected queue pair of the kernel's program that `start` has started as ID: lqpn its own, rqpn its peer's.
number_of() {
  parent=$(cat "$dir/$1.pid" 2>/dev/null)
  for child in $(pidof rping); do
    read -r _ _ _ of _ <"/proc/$child/stat" && [ "$of" = "$parent" ] || continue
    rdma resource show qp | sed -n "s/.* $2 \([0-9]*\) .*type RC state RTS.* pid $child .*/\1/p"
  done
}
has_number() { [ -n "$(number_of "$1" lqpn)" ]; }

# A peer that has forgotten its connections comes back and connects with the numbers of the old ones: the other one may refuse it as stale once, and
# ends the old connection; then it has its way (spdk #3347, libfabric #6660).
part_restart() {
  # Ours. Each time its host begins with an empty registry.
  quiet
  start server "$SOFT_RUN env FERROCE_RUNTIME_DIR=/tmp/first ferroce rping -s"
  await 10 printed server waiting
  start old "rping -c -a $SOFT_IP4"
  await 10 has_number old
  before=$(number_of old rqpn)
  loss_on 100
  kill -9 $(pidof ferroce)
  loss_end
  start server "$SOFT_RUN env FERROCE_RUNTIME_DIR=/tmp/second ferroce rping -s -P"
  await 10 printed server waiting
  again "soft" rqpn "$before"
  stop server
  kill -9 $(pidof rping)

  # The kernel's: without its device it says nothing of the end, and a new device counts from the beginning.
  await 10 not_connected
  new_device
  start server "$ferroce -s -P"
  await 10 printed server waiting
  start old "rping -c -a $SOFT_IP4"
  await 10 has_number old
  before=$(number_of old lqpn)
  loss_on 100
  kill -9 $(pidof rping)
  await 10 not_connected
  new_device
  loss_end
  again "kernel" lqpn "$before"
  stop server
}

new_device() {
  rdma link del rxe0
  rdma link add rxe0 type rxe netdev v0
  await 20 gid_index rxe0 $RXE_IP4 >/dev/null 2>&1
}

# again WHO FIELD NUMBER: a client of the kernel's connects, at the second try at the latest. At the first one its queue pair or the peer's has that
# number: it is seen in the connection, or the reason for which it is refused (10, stale connection) says so.
again() {
  stale=
  for try in 1 2; do
    start client "rping -c -a $SOFT_IP4"
    await 60 settled
    number=$(number_of client "$2")
    stop client
    [ -z "$number" ] || break
    if printed client "RDMA_CM_EVENT_REJECTED, error 10"; then stale=yes; fi
  done
  if [ "$number" = "$3" ] || { [ -n "$number" ] && [ -n "$stale" ]; }; then
    pass "$1 comes back with the same numbers (try $try)"
  else
    fail "$1 comes back with the same numbers" "after $try tries it has $number, and had $3" client
  fi
}
settled() { ended client || has_number client; }

# One capture of each program of ours; xtask has tshark look at them.
part_trace() {
  for side in client server; do rm -f /tmp/$side-*.pcap; done
  quiet
  pair "traced: rping soft to kernel" "$RPING -s -a $RXE_IP4 -C 2" cm "$(traced client-rping) rping -c -a $RXE_IP4 -C 2"
  pair "traced: rping kernel to soft" "$(traced server-rping) rping -s" "line:waiting" "$RPING -c -a $SOFT_IP4 -C 2"
  quiet
  pair "traced: udaddy soft to kernel" "udaddy -b $RXE_IP6" cm "$(traced client-udaddy) udaddy -s $RXE_IP6"
  pair "traced: udaddy kernel to soft" "$(traced server-udaddy) udaddy -b ::" "line:waiting" "udaddy -s $SOFT_IP6"
  refused "traced: nobody listens" "$(traced client-refused) rping -c -a $RXE_IP4 -p 7199 -C 1" "nobody listens"
  for name in client-rping server-rping client-udaddy server-udaddy client-refused; do
    hand_over $name "/tmp/$name.pcap"
  done
}
traced() { echo "$SOFT_RUN env FERROCE_CAPTURE=/tmp/$1.pcap ferroce"; }

lose() { loss_on 2; await 60 lost_some; loss_off; }
lost_some() { lost_both 5 || ended client; }
lose_all_along() { loss_on 10; }

part_loss() {
  during=lose
  quiet
  pair "rping soft to kernel: 2 % loss" "$RPING -s -a $RXE_IP4 -C 1000 -V" cm "$ferroce -c -a $RXE_IP4 -C 1000 -V"
  pair "rping kernel to soft: 2 % loss" "$ferroce -s" "line:waiting" "$RPING -c -a $SOFT_IP4 -C 1000 -V"
  # So many that the answers to two requests in a row are lost: what is acknowledged again then must not be taken for what was read.
  during=lose_all_along
  quiet
  pair "rping soft to kernel: 10 % loss" "$RPING -s -a $RXE_IP4 -C 200 -V" cm "$ferroce -c -a $RXE_IP4 -C 200 -V"
  loss_end
  # The kernel's requester waits two seconds for each packet of its own that is lost.
  quiet
  pair "rping kernel to soft: 10 % loss" "$ferroce -s" "line:waiting" "$RPING -c -a $SOFT_IP4 -C 20 -V"
  during=
  loss_end
  # Only messages of the connection managers. Neighbours are known before.
  ping -c 1 $SOFT_IP4 >/dev/null
  quiet
  lossy "cmatose soft to kernel" "ucmatose -b $RXE_IP4 -c 100 -C 0" cm "$cmatose -s $RXE_IP4 -c 100 -C 0"
  lossy "cmatose kernel to soft" "$cmatose -c 100 -C 0" "line:waiting" "ucmatose -s $SOFT_IP4 -c 100 -C 0"
}

# lossy NAME SERVER READY CLIENT: a pair that loses packets all the time, in each direction.
lossy() {
  loss_on 5
  pair "$1: 100 connections, 5 % loss" "$2" "$3" "$4"
  if lost_both 1; then pass "$1: $(lost_near) and $(lost_far) messages were lost"; else fail "$1: messages were lost" "there were none" client; fi
  loss_end
}

[ $# = 0 ] && set -- rping cmatose udaddy mckey cmtime refused killed restart loss trace
for part; do part_$part; done
finish
