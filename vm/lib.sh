# Helpers for scripts that run inside the kernel test bed. Source it:  . "${0%/*}/lib.sh"
#
# A script runs cases. Each prints `PASS name (time)` or `FAIL name: why`, and for a failure what its programs printed; `finish`, at the end,
# makes the script fail if any case did. Commands are passed as one string and split at blanks.
#
#   pair NAME SERVER READY CLIENT   runs SERVER in the background until it is READY, then CLIENT, and wants 0 from both
#   case_of NAME COMMAND            wants 0 from COMMAND
#   finish                          the end
#
# READY: tcp:PORT (somebody listens on it in the initial namespace), soft-tcp:PORT (in the namespace `soft`), cm (any RDMA CM listener exists),
#        line:TEXT (the server has printed TEXT).
#
# Starting a program costs more than anything else here, where every instruction is emulated: what is done often does without.

RXE_IP4=10.77.0.1
RXE_IP6=fd77::1
SOFT_IP4=10.77.0.2
SOFT_IP6=fd77::2

# Runs a command in the namespace `soft` as root, and as somebody who may do nothing special.
IN_SOFT="ip netns exec soft"
AS_NOBODY="setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs"

# The C program.
RPING=/vm/rping.sh

# Seconds that one command may take, and that a server may take to be ready.
limit=90
ready_limit=30
# Failures after which a script gives up: when everything hangs, one does not want to wait for all of it.
max_failures=8
# Empty, or the name of a function to call while the client runs.
during=
# Not empty: the server does not end by itself, and its status says nothing.
endless_server=

passed=0
failed=0
dir=$(mktemp -d)

# Hundredths of seconds since boot.
now() {
  read -r up _ </proc/uptime
  echo "${up%.*}${up#*.}"
}

since() {
  hundredths=$(($(now) - $1))
  printf '%d.%02d s' $((hundredths / 100)) $((hundredths % 100))
}

# pass NAME; fail NAME WHY [ID...]: with what the commands of these names have printed.
pass() {
  passed=$((passed + 1))
  echo "PASS $1"
}

fail() {
  failed=$((failed + 1))
  echo "FAIL $1: $2"
  shift 2
  dump "$@"
  [ "$failed" -lt $max_failures ] || { echo "giving up after $failed failures"; finish; }
}

finish() {
  kill $witness
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ] && [ "$passed" != 0 ]
  exit
}

# start ID COMMAND: runs it in the background; output, process id and status go to files of that name.
start() {
  rm -f "$dir/$1".*
  echo "\$ $2" >"$dir/$1.log"
  (
    # shellcheck disable=SC2086 # a command is split at blanks
    sh -c 'echo $$ >"$0"; exec "$@"' "$dir/$1.pid" timeout -k 2 "$limit" $2 </dev/null >>"$dir/$1.log" 2>&1
    echo $? >"$dir/$1.status.new"
    mv "$dir/$1.status.new" "$dir/$1.status"
  ) &
}

ended() { [ -e "$dir/$1.status" ]; }

# await SECONDS COMMAND...: repeats the command until it succeeds; fails if it does not in time.
await() {
  end=$(($(now) + $1 * 100))
  shift
  until "$@"; do
    [ "$(now)" -lt $end ] || return 1
    sleep 0.05
  done
}

# stop ID: ends what `start` started, if it has not ended.
stop() {
  ended "$1" && return
  # `timeout` passes the signal on, and kills what does not heed it.
  kill "$(cat "$dir/$1.pid")" 2>/dev/null
  await 5 ended "$1"
}

status() {
  if ended "$1"; then cat "$dir/$1.status"; else echo running; fi
}

# hand_over NAME FILE: gives a capture to whoever runs the machine, who has tshark look at it.
hand_over() { od -An -v -tx1 "$2" | sed "s/^/##$(cat /vm/nonce) capture $1/"; }

# A process in `soft`, through which one sees the namespace without entering it.
$IN_SOFT sleep 99999 &
witness=$!

# listens PROCESS PORT: somebody in the process's network namespace does. The state 0A is LISTEN.
listens() {
  hex=$(printf %04X "$2")
  for table in "/proc/$1/net/tcp" "/proc/$1/net/tcp6"; do
    while read -r _ local _ state _; do
      case "$local $state" in *":$hex 0A") return 0 ;; esac
    done <"$table"
  done
  return 1
}
cm_listens() { rdma resource show cm_id | grep -q 'state LISTEN'; }
printed() { grep -qF -- "$2" "$dir/$1.log"; }

ready_or_gone() {
  ended server && return
  case $1 in
    tcp:*) listens self "${1#*:}" ;;
    soft-tcp:*) listens $witness "${1#*:}" ;;
    cm) cm_listens ;;
    line:*) printed server "${1#*:}" ;;
    *) echo "lib.sh: bad condition $1"; exit 2 ;;
  esac
}

dump() {
  for id in "$@"; do
    [ -e "$dir/$id.log" ] || continue
    echo "  --- $id ($(status "$id")):"
    tail -n 25 "$dir/$id.log" | sed 's/^/  | /'
  done
}

pair() {
  began=$(now)
  rm -f "$dir"/client.*
  start server "$2"
  if ! await "$ready_limit" ready_or_gone "$3" || ended server; then
    stop server
    fail "$1" "the server ended or was not ready after $(since "$began"), waiting for $3" server
    return
  fi
  start client "$4"
  # The function may fail the case: it prints why.
  trouble=
  [ -z "$during" ] || trouble=$($during)
  await $((limit + 5)) ended client || stop client
  if [ -n "$endless_server" ]; then
    stop server
    server=0
  else
    # It should be about to end, or its client has failed and it may wait for ever.
    patience=20
    [ "$(status client)" = 0 ] || patience=2
    await $patience ended server || stop server
    server=$(status server)
  fi
  client=$(status client)
  if [ "$client $server" = "0 0" ] && [ -z "$trouble" ]; then
    pass "$1 ($(since "$began"))"
  else
    fail "$1" "client $client, server $server${trouble:+, $trouble}" server client
  fi
}

case_of() {
  began=$(now)
  start client "$2"
  await $((limit + 5)) ended client || stop client
  client=$(status client)
  if [ "$client" = 0 ]; then
    pass "$1 ($(since "$began"))"
  else
    fail "$1" "status $client" client
  fi
}

# The GID that stands for an address, as sysfs writes it: IPv4, or IPv6 of the form PREFIX::NUMBER with four and one digits.
gid_of() {
  case $1 in
    *:*) printf '%s:0000:0000:0000:0000:0000:0000:%04x\n' "${1%%:*}" "${1##*:}" ;;
    *)
      # shellcheck disable=SC2046 # four words
      printf '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x\n' $(echo "$1" | tr . ' ')
      ;;
  esac
}

# gid_index DEVICE ADDRESS: the address's place in the GID table of a kernel device.
gid_index() {
  wanted=$(gid_of "$2")
  index=0
  # The table is long and filled from its beginning.
  while [ $index -lt 16 ] && read -r gid <"/sys/class/infiniband/$1/ports/1/gids/$index"; do
    [ "$gid" != "$wanted" ] || { echo $index; return; }
    index=$((index + 1))
  done
  echo "lib.sh: $1 has no GID for $2" >&2
  return 1
}

# The two ends of the cable that loses packets. What runs `tc` at each, and the name of the interface there.
near_tc=tc near_end=v0
far_tc="$IN_SOFT tc" far_end=v1

# loss_on PERCENT: loses packets in both directions and counts anew; loss_off stops it and keeps the counters; loss_end removes it.
loss_on() {
  loss_end 2>/dev/null
  $near_tc qdisc add dev $near_end root netem limit 10000 loss "$1%"
  $far_tc qdisc add dev $far_end root netem limit 10000 loss "$1%"
}
loss_off() {
  $near_tc qdisc change dev $near_end root netem limit 10000 loss 0%
  $far_tc qdisc change dev $far_end root netem limit 10000 loss 0%
}
loss_end() {
  $near_tc qdisc del dev $near_end root
  $far_tc qdisc del dev $far_end root
}

# Packets lost so far in each direction.
lost_near() { $near_tc -s qdisc show dev $near_end | lost_of; }
lost_far() { $far_tc -s qdisc show dev $far_end | lost_of; }
lost_of() { sed -n 's/.*(dropped \([0-9]*\),.*/\1/p' | head -n 1; }

# lost_both COUNT: at least so many packets have been lost in each direction.
lost_both() { [ "$(lost_near)" -ge "$1" ] && [ "$(lost_far)" -ge "$1" ]; }
