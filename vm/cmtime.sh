#!/bin/sh
# What the steps of a connection cost, one after the other for a thousand connections: librdmacm's cmtime over the kernel's ib_cm and Soft-RoCE
# against itself, and `ferroce cmtime` on the software device against itself, on the same machine. Neither leaves its host: the kernel's packets
# turn round within rxe0, ours go through shared memory or, with udp, through the loopback interface of `soft`.
#
#   cmtime.sh                  all three
#   cmtime.sh CONTENDER...     librdmacm, ferroce, ferroce-udp
#
# For each a table, and a line `RESULT {...}` with microseconds per connection of each step and their sum.
. "${0%/*}/lib.sh"

connections=1000
limit=300
SOFT_RUN="$IN_SOFT $AS_NOBODY"

# steps: prints NAME=MICROSECONDS for each step that the client's table has. The programs' tables differ: the kernel's has a colon after the name
# and the figure in the last column.
steps() {
  awk '
    /^[a-z][a-z ]* *: +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+$/ { figure = $NF; sub(/ *:.*/, ""); print $0 "=" figure; next }
    /^[a-z][a-z ]* +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+$/ { figure = $(NF - 2); sub(/ +[0-9].*/, ""); print $0 "=" figure }
  ' "$dir/client.log"
}

# result CONTENDER
result() {
  steps | awk -F= -v contender="$1" -v connections=$connections '
    { list = list (NR > 1 ? ", " : "") "\"" $1 "\": " $2; sum += $2; printf "%-14s %10.2f us / connection\n", $1, $2 }
    END {
      printf "%-14s %10.2f us / connection\n", "sum", sum
      printf "RESULT {\"contender\": \"%s\", \"connections\": %d, \"us_per_connection\": {%s}, \"sum_us\": %.2f}\n", contender, connections, list, sum
      exit NR < 7
    }'
}

# measure CONTENDER SERVER READY CLIENT
measure() {
  pair "$1: $connections connections" "$2" "$3" "$4"
  if [ "$(status client)" = 0 ]; then result "$1" || fail "$1: its steps" "there are fewer than 7" client; fi
}

ours() {
  measure "$1" "$SOFT_RUN ferroce cmtime --once -b $SOFT_IP4 -c $connections --link $2" "line:waiting" \
    "$SOFT_RUN ferroce cmtime -s $SOFT_IP4 -c $connections --link $2"
}

[ $# = 0 ] && set -- librdmacm ferroce ferroce-udp
for contender; do
  case $contender in
    librdmacm)
      # Its server never ends.
      endless_server=yes
      measure librdmacm "cmtime -b $RXE_IP4" cm "cmtime -s $RXE_IP4 -c $connections"
      endless_server=
      ;;
    ferroce) ours ferroce auto ;;
    ferroce-udp) ours ferroce-udp udp ;;
    *) fail "cmtime.sh" "there is no contender $contender" ;;
  esac
done
finish
