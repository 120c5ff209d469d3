# Our switch's queues and policers in the kernel's `tc`: htb and hfsc as root queues, and policing of what is received as a filter, with
# the looks that Open vSwitch's own suite takes (system-traffic.at: "QoS - 64bit", "Ingress Policing - 64-bit"; system-offloads-traffic.at).
. "${0%/*}/lib.sh"
for m in veth tun sch_htb sch_hfsc sch_ingress cls_matchall act_police; do modprobe $m; done
start() { "$BIN/dpdk-dataplane" --embed="$run" --detach --no-chdir --pidfile --log-file > /dev/null; }
start
for n in 0 1; do ip link add p$n type veth peer name q$n; ip link set p$n up; ip link set q$n up; done
ovs-vsctl add-br br0 -- set bridge br0 datapath_type=netdev -- add-port br0 p0 -- add-port br0 p1
explain() {
  for d in p0 p1; do echo "$d:"; tc qdisc show dev $d; tc -d class show dev $d; tc -o -s -d filter show dev $d ingress; done
  ovs-vsctl list QoS; ovs-vsctl list Queue
}
# As the suite has it, right after ovs-vsctl has ended: what it waited for is done.
policed() { tc -o -s -d filter show dev p0 ingress | sed -n 's/.*\(rate [0-9]*[a-zA-Z]* burst [0-9]*[a-zA-Z]*\).*/\1/; T; p; q' | grep -q "$1"; }
packets() { tc -o -s -d filter show dev p0 ingress | sed -n 's/.*\(pkts_rate [0-9]*[a-zA-Z]* pkts_burst [0-9]*[a-zA-Z]*\).*/\1/; T; p; q' | sed -e 's/10240/10000/'; }
filtered() { tc -s -d filter show dev p0 ingress | grep -E "basic|matchall" > /dev/null; }
no_ingress() { ! tc qdisc show dev p0 | grep -q ingress; }
ovs-vsctl set interface p0 ingress_policing_rate=50000000
ovs-vsctl set interface p0 ingress_policing_burst=400000
policed "rate 50Gbit burst 7.......b" || fail "the suite's \"Ingress Policing - 64-bit\""
filtered || fail "the suite's filter"
echo "ok: a rate of 64 bits"
ovs-vsctl set interface p0 ingress_policing_rate=100 ingress_policing_burst=10
policed "rate 100Kbit burst 1...b" || fail "the suite's rate of 100 kbit/s"
[ "$(tc -o -s -d filter show dev p0 ingress | grep -c police)" = 1 ] || fail "one policer"
echo "ok: another rate"
ovs-vsctl set interface p0 ingress_policing_kpkts_rate=100 ingress_policing_kpkts_burst=10
tc -o filter show dev p0 ingress | grep -q 'rate 100Kbit burst 1...b .* pkts_rate 100000 pkts_burst 10000 ' || fail "bytes and packets"
ovs-vsctl set interface p0 ingress_policing_rate=0 ingress_policing_burst=0
[ "$(packets)" = "pkts_rate 100000 pkts_burst 10000" ] && ! policed "rate [1-9]" || fail "the suite's packets"
echo "ok: bytes and packets"
# The kernel drops what exceeds it on the way to its own stack: 5 of 20 packets pass.
ovs-vsctl set interface p0 ingress_policing_kpkts_rate=0 ingress_policing_rate=8 ingress_policing_burst=6
python3 -c '
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind(("q0", 0))
for _ in range(20): s.send(bytes(12) + b"\x88\xb5" + bytes(86))'
tc -s filter show dev p0 ingress | grep -q 'dropped 1[0-9], overlimits 1[0-9]' || fail "what exceeds the rate is dropped"
echo "ok: what exceeds the rate is dropped"
# A switch that was killed meanwhile brings it into line.
crash() { kill -9 "$(cat dpdk-dataplane.pid)"; while [ -e "/proc/$(cat dpdk-dataplane.pid)" ]; do sleep 0.1; done; rm dpdk-dataplane.pid; }
crash; start; ovs-vsctl set interface p0 ingress_policing_rate=200
policed "rate 200Kbit" && [ "$(tc -o filter show dev p0 ingress | grep -c police)" = 1 ] || fail "after a crash"
ovs-vsctl set interface p0 ingress_policing_rate=0
no_ingress || fail "nothing is left"
echo "ok: nothing is left without a rate"
# An operator's filters and queues beside ours.
tc qdisc add dev p0 clsact; tc filter add dev p0 ingress prio 7 protocol ip matchall action pass
ovs-vsctl set interface p0 ingress_policing_rate=300
policed "rate 300Kbit" || fail "beside an operator's filter"
ovs-vsctl set interface p0 ingress_policing_rate=0
tc filter show dev p0 ingress | grep -q 'pref 7 matchall' && ! policed rate || fail "an operator's filter stays"
tc qdisc del dev p0 clsact
echo "ok: an operator's filters stay"

ovs-vsctl set port p0 qos=@qos -- set port p1 qos=@qos -- --id=@qos create qos type=linux-htb other-config:max-rate=50000000000 queues:0=@queue -- \
  --id=@queue create queue other_config:min-rate=40000000000 other_config:max-rate=50000000000 other_config:burst=5000000 > /dev/null
for d in p0 p1; do tc class show dev $d | grep -q 'class htb .* rate 40Gbit ceil 50Gbit burst 6.....b cburst 6.....b' || fail "the suite's \"QoS - 64bit\""; done
echo "ok: htb"
# hfsc in place of htb: guaranteed and greatest rates.
ovs-vsctl set port p0 qos=@qos -- --id=@qos create qos type=linux-hfsc other-config:max-rate=10000000 queues:0=@a queues:5=@b -- \
  --id=@a create queue other_config:min-rate=2000000 -- --id=@b create queue other_config:min-rate=3000000 other_config:max-rate=4000000 > /dev/null
hfsc() { tc class show dev p0 | grep -q "class hfsc $1"; }
hfsc "1:fffe parent 1: .*sc m1 0bit d 0us m2 10Mbit ul m1 0bit d 0us m2 10Mbit" && hfsc "1:1 parent 1:fffe sc m1 0bit d 0us m2 2Mbit ul m1 0bit d 0us m2 10Mbit" \
  && hfsc "1:6 parent 1:fffe sc m1 0bit d 0us m2 3Mbit ul m1 0bit d 0us m2 4Mbit" || fail "hfsc"
echo "ok: hfsc"
ovs-vsctl set port p0 qos=@qos -- --id=@qos create qos type=linux-htb other-config:max-rate=10000000 > /dev/null
tc class show dev p0 | grep -q 'class htb 1:1 parent 1:fffe .*rate 12Kbit ceil 10Mbit' || fail "htb in place of hfsc"
ovs-vsctl clear port p0 qos
tc qdisc show dev p0 | grep -q 'htb' && fail "nothing is left without QoS"
echo "ok: htb in place of hfsc, and nothing at last"
kill "$(cat dpdk-dataplane.pid)"
