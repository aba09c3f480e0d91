#!/bin/sh
# A storm of connections on one Soft-RoCE device, in one boot: `ferroce storm` over the kernel's connection manager, and the same through
# librdmacm in the two ways that keep IO threads from destroying what the event thread uses (storm_rdmacm.c, which comes in /payload).
#
#   storm.sh [NIC [THREADS [CONNECTIONS [FACTOR]]]]
#
# NIC: none, or slow: the calls of a queue pair take FACTOR times as long as on a NIC (modelled, alike for all).
# For each contender a line `RESULT {...}` with connections per second and the mean setup.
. "${0%/*}/lib.sh"

nic=${1:-none}
threads=${2:-8}
connections=${3:-1000}
factor=${4:-1}
window=32
limit=$((120 + connections / 8))

# result CONTENDER RATE MEAN
result() {
  printf 'RESULT {"contender": "%s", "nic": "%s", "io_threads": %s, "connections": %s, "rate_per_s": %s, "setup_mean_us": %s}\n' \
    "$1" "$nic" "$threads" "$connections" "$2" "$3"
}

# figure NAME: the first number of that name in the client's document.
figure() { tr -d ' \n' <"$dir/client.log" | sed -n "s/.*\"$1\":\([0-9.]*\).*/\1/p"; }

measured() {
  [ "$(status client)" = 0 ] || return
  rate=$(figure rate_per_s) mean=$(figure mean)
  if [ -n "$rate" ] && [ -n "$mean" ]; then result "$1" "$rate" "$mean"; else fail "$1: its figures" "there are none" client; fi
}

for policy in deferred channel-lock; do
  args="$RXE_IP4 $policy $threads $nic $factor $connections"
  pair "librdmacm, $policy: $connections connections" "/payload/storm_rdmacm server $args" cm "/payload/storm_rdmacm client $args $window"
  measured "librdmacm $policy"
done
case_of "ferroce, per-id: $connections connections" \
  "ferroce storm --device rxe0 --json --nic $nic --nic-factor $factor --io-threads $threads -n $connections --window $window"
measured ferroce
finish
