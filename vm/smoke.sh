echo hello
ibv_devinfo -v | head -50
grep . /sys/class/infiniband/rxe0/ports/1/gids/* | grep -v 0000:0000:0000:0000:0000:0000:0000:0000
ip netns exec soft ping -c 2 10.77.0.1
ip netns exec soft ping6 -c 2 fd77::1
cat /sys/devices/system/clocksource/clocksource0/*
