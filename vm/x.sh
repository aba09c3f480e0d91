#!/bin/sh
. "${0%/*}/lib.sh"
for t in rc_verbs ud_verbs; do
case_of "$t lat" "ferroce perf am --lat --local -d rxe0 --transport $t -n 200"
case_of "$t rate" "ferroce perf am --rate --local -d rxe0 --transport $t -n 2000"
case_of "$t bw" "ferroce perf am --bw --local -d rxe0 --transport $t -n 200 -s 4000"
done
for op in put get atomic; do
case_of "$op lat" "ferroce perf $op --lat --local -d rxe0 --transport rc_verbs -n 200"
done
case_of "ah" "ferroce bench ah -d rxe0"
case_of "reconnect" "ferroce bench reconnect -d rxe0"
finish
