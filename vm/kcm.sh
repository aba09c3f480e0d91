#!/bin/sh
# The kernel's connection manager behind `ferroce`, on Soft-RoCE: against rdma-core's programs on the same device, against itself, against the
# software device in the namespace `soft`, and what it says where it cannot be used.
#
#   kcm.sh            all of it
#   kcm.sh PART...    parts of it: rping, cmatose, udaddy (datagrams), mckey (multicast), cmtime, soft (the software device), refused
#                     (nobody listens), storm, cases (the cases of connection management), errors, removed (the device goes away)
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
    pair "rping ipv$family ferroce to C: 100 pings" "rping -s -a $here -C 100 -V" cm "$rxe rping -d rxe0 -c -a $here -C 100 -V"
    quiet
    pair "rping ipv$family C to ferroce: 100 pings" "$rxe rping -d rxe0 -s -a $here" cm "rping -c -a $here -C 100 -V"
  done
  quiet
  pair "rping ferroce to ferroce: 65535 bytes" "$rxe rping -d rxe0 -s -S 65535" cm "$rxe rping -d rxe0 -c -a $RXE_IP4 -C 20 -V -S 65535"
  endless_server=yes
  quiet
  pair "rping: 32 C clients of one server" "$rxe rping -d rxe0 -s -P" cm "/vm/cm.sh clients rping -c -a $RXE_IP4 -C 5 -V"
  quiet
  endless_server=
}

[ $# = 0 ] && set -- rping
for part; do part_$part; done
finish
