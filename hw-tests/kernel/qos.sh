# Rates of logical ports (qos_min_rate, qos_max_rate, qos_burst) in the kernel's `tc`: the controller writes Queue and QoS rows, and Open
# vSwitch's own switch makes classes of the provider network's device of them, through which the port's packets then go.
. "${0%/*}/lib.sh"
for m in veth openvswitch sch_htb; do modprobe $m; done
start_switch
start_ovn hv1 127.0.0.1
until_ 60 "the northbound database" ovn-nbctl ls-add ls
ovs-vsctl add-br br-ex
ip netns add out; ip link add wire type veth peer name eth0 netns out; ip link set wire up
ip -n out addr add 10.7.0.100/24 dev eth0; ip -n out link set eth0 up
ovs-vsctl add-port br-ex wire -- set Open_vSwitch . external_ids:ovn-bridge-mappings=phys:br-ex
ovn-nbctl lsp-add ls net -- lsp-set-type net localnet -- lsp-set-addresses net unknown -- lsp-set-options net network_name=phys
for n in 1 2; do
  machine vm$n 02:00:00:00:00:0$n 10.7.0.$n/24
  ovn-nbctl lsp-add ls vm$n -- lsp-set-addresses vm$n "02:00:00:00:00:0$n 10.7.0.$n"
done
explain() { ovs-vsctl list QoS; ovs-vsctl list Queue; tc -s class show dev wire; ovs-dpctl dump-flows; ovn-sbctl --columns=logical_port,options list Port_Binding; }
reaches() { ip netns exec "$1" ping -n -c 1 -W 1 10.7.0.100; }
for n in 1 2; do until_ 60 "vm$n reaches the network" reaches vm$n; done

class() { tc class show dev wire | grep -q "class htb .* $1"; }
no_class() { ! class "$1"; }
none() { ! tc qdisc show dev wire | grep -q 'qdisc htb'; }
rates() { # rates PORT MIN MAX BURST
  ovn-nbctl set Logical_Switch_Port "$1" options:qos_min_rate="$2" options:qos_max_rate="$3" options:qos_burst="$4"
}
# The packets of a class, which is found by its rates.
sent() { tc -s class show dev wire | sed -n "/class htb .* $1/{n;s/.* \([0-9]*\) pkt .*/\1/p}"; }
none || fail "there are no queues at first"
rates vm1 200000 300000 3000000
until_ 30 "vm1's class" class "rate 200Kbit ceil 300Kbit burst 3.....b cburst 3.....b"
rates vm2 400000 600000 6000000
until_ 30 "vm2's class" class "rate 400Kbit ceil 600Kbit burst 7.....b cburst 7.....b"
before=$(sent "ceil 300Kbit") other=$(sent "ceil 600Kbit")
ip netns exec vm1 ping -n -c 5 -i 0.2 -W 2 10.7.0.100 > ping || fail "$(cat ping)"
after=$(sent "ceil 300Kbit"); [ $((after - before)) -ge 5 ] || fail "vm1's packets go through its class: $before, then $after"
[ "$(sent "ceil 600Kbit")" -le $((other + 1)) ] || fail "vm1's packets go through vm2's class"
echo "ok: packets go through their port's class"

# Twice the rate for some seconds arrives at the rate: the queue makes the sender wait, who holds the packets in it.
ovn-nbctl set Logical_Switch_Port vm1 options:qos_burst=15000
until_ 30 "a small burst" class "ceil 300Kbit burst 1.* cburst 1"
watch out eth0 "udp port 9" arrived
ip netns exec vm1 python3 -c '
import socket, time
s, start, n = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), time.monotonic(), 0
while time.monotonic() < start + 8:
    s.sendto(bytes(958), ("10.7.0.100", 9)); n += 1
    time.sleep(max(0, start + n * 0.013 - time.monotonic()))'
unwatch
rate=$(awk '/UDP, length 958/ { split($1, t, ":"); at = t[1] * 3600 + t[2] * 60 + t[3]; if (!n++) first = at; last = at }
            END { printf "%d", (n > 1 ? (n - 1) * 8 / (last - first) : 0) }' arrived)
{ [ "$rate" -ge 150 ] && [ "$rate" -le 330 ]; } || fail "datagrams of 1,000 octets, offered at 600 kbit/s, arrive at $rate kbit/s instead of 300"
echo "ok: datagrams of 1,000 octets, offered at 600 kbit/s, arrive at $rate kbit/s"

rates vm1 200000 350000 3000000
until_ 30 "another rate" class "rate 200Kbit ceil 350Kbit burst 3"
until_ 30 "the former one is gone" no_class "ceil 300Kbit"
for k in qos_min_rate qos_max_rate qos_burst; do ovn-nbctl remove Logical_Switch_Port vm1 options $k; done
until_ 30 "vm1's class is gone" no_class "ceil 350Kbit"
class "rate 400Kbit ceil 600Kbit" || fail "vm2's class stays"
# A controller that was killed meanwhile brings it into line.
kill -9 "$(cat controller.pid)"; rm controller.pid
ovn-nbctl set Logical_Switch_Port vm2 options:qos_max_rate=800000
"$BIN/controller" --detach --no-chdir --pidfile --log-file > /dev/null
until_ 30 "after a crash" class "rate 400Kbit ceil 800Kbit"
ovn-nbctl lsp-del vm2
until_ 30 "a port that goes takes the queues along" none
# A QoS that is the operator's is left alone.
ovs-vsctl set Port wire qos=@q -- --id=@q create QoS type=linux-htb other_config:max-rate=5000000
rates vm1 200000 300000 3000000
ovn-nbctl --wait=hv sync
sleep 2
no_class "ceil 300Kbit" || fail "the operator's QoS was changed"
until_ 30 "the operator's" class "ceil 5Mbit"
kill "$(cat controller.pid)"
