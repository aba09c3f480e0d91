#!/bin/sh
# librdmacm's rping, whose end is a race: the main thread, which is through with everything, closes the event channel and returns, and the thread
# that reads events ends the program with an error (255) if it comes to read once more in between. Only then, and if nothing else is said, that
# counts as a good end.
said=$(mktemp)
trap 'cat "$said"; rm "$said"; exit 143' TERM
rping "$@" >"$said" 2>&1
status=$?
trap - TERM
cat "$said"
if [ $status = 255 ] && grep -q '^rdma_get_cm_event: Bad file descriptor$' "$said"; then
  # 10 is DISCONNECTED: a server, whose clients are through.
  grep -qv -e ' DISCONNECT EVENT\.\.\.$' -e '^wait for RDMA_READ_ADV state 10$' -e '^rdma_get_cm_event: Bad file descriptor$' "$said" || status=0
fi
rm "$said"
exit $status
