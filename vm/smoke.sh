#!/bin/sh
# Proves the test bed itself: the kernel's device, its connection manager, the cable, loss on the cable, and that these helpers notice failures.
. "${0%/*}/lib.sh"

case_of "rxe0 is active" "ibv_devinfo -d rxe0 -v"
for word in PORT_ACTIVE 'active_mtu:		1024' Ethernet; do
  if printed client "$word"; then pass "ibv_devinfo says $word"; else fail "ibv_devinfo says $word" "it does not" client; fi
done
for address in $RXE_IP4 $RXE_IP6; do
  if index=$(gid_index rxe0 "$address"); then pass "$address is GID $index"; else fail "$address is a GID" "it is none"; fi
done

for address in $RXE_IP4 $RXE_IP6; do
  case_of "ping from soft to $address" "$IN_SOFT ping -c 1 $address"
  pair "rping $address" "$RPING -s -a $address -C 20 -V" cm "$RPING -c -a $address -C 20 -V"
done

endless_server=1
pair "cmtime 100 connections" "cmtime -b $RXE_IP4" cm "cmtime -s $RXE_IP4 -c 100"
endless_server=

loss_on 50
start server "ping -q -c 40 -i 0.05 $SOFT_IP4"
case_of "half of the packets are lost" "$IN_SOFT ping -q -c 40 -i 0.05 $RXE_IP4"
await 10 ended server
if lost_both 5; then pass "loss is counted at both ends"; else fail "loss is counted at both ends" "$(lost_near) and $(lost_far)"; fi
loss_off
case_of "no packets are lost" "$IN_SOFT ping -q -c 20 -i 0.05 $RXE_IP4"
if printed client ' 0% packet loss'; then pass "loss ends"; else fail "loss ends" "it does not" client; fi
loss_end

# notices NAME TEXT COMMAND...: the command, in a copy of this script, must report a failure with this text.
notices() {
  name=$1 text=$2
  shift 2
  report=$(failed=0; "$@")
  case $report in
    FAIL*"$text"*) pass "$name" ;;
    *) fail "$name" "it did not"; echo "$report" | sed 's/^/  | /' ;;
  esac
}
# The helpers' log of a program begins with "$ ", so that it is ready at once.
limit=3
notices "a failing client is noticed" "client 1, server 0" pair x "sleep 1" "line:$" false
notices "a failing server is noticed" "client 0, server 124" pair x "timeout 1 sleep 9" "line:$" "true"
notices "a server that ends early is noticed" "the server ended" pair x true "line:never" true
notices "a hanging client is noticed" "client 124, server 0" pair x "sleep 1" "line:$" "sleep 99"
notices "a hanging server is noticed" "client 0, server 124" pair x "sleep 99" "line:$" true
notices "a failing program is noticed" "status 1" case_of x false
ready_limit=1
notices "a server that is never ready is noticed" "not ready" pair x "sleep 99" "line:never" true
finish
