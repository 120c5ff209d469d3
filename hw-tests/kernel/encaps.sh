# Chassis with two encapsulation addresses, on two networks: each port's packets take the network of its address (encap-ip of the
# interface, requested-encap-ip of the port, ovn-encap-ip-default). One chassis has Open vSwitch's own switch on the kernel's datapath,
# the other one ours. What passes on each network is watched.
. "${0%/*}/lib.sh"
for m in tun openvswitch geneve veth; do modprobe $m; done
start_central
until_ 60 "the northbound database" ovn-nbctl ls-add ls

for c in hv1 hv2; do
  new_chassis $c
  ip netns exec $c sysctl -q -w net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
done
for net in a b; do
  ip link add net-$net netns hv1 type veth peer name net-$net netns hv2
  for c in hv1 hv2; do on $c ethtool -K net-$net tx off > /dev/null; on $c ip link set net-$net up; done
done
a=192.0.2 b=198.51.100
on hv1 ip addr add $a.1/24 dev net-a; on hv1 ip addr add $b.1/24 dev net-b
kernel_switch hv1
on hv2 "$BIN/dpdk-dataplane" --embed="$run/hv2" --detach --no-chdir --pidfile --log-file > /dev/null
# An emulated machine has other things to do than to poll.
on hv2 ovs-vsctl set Open_vSwitch . other_config:pmd-sleep-max=5000
for net in a b; do
  on hv2 ovs-vsctl add-br br-$net -- set bridge br-$net datapath_type=netdev -- add-port br-$net net-$net
  on hv2 ip link set br-$net up
done
on hv2 ip addr add $a.2/24 dev br-a; on hv2 ip addr add $b.2/24 dev br-b
on hv2 ovs-vsctl add-br br-int -- set bridge br-int datapath_type=netdev fail_mode=secure
for n in 1 2; do
  on hv$n ovs-vsctl set Open_vSwitch . external_ids:ovn-encap-ip-default=$b.$n
  join hv$n $a.$n,$b.$n
done
until_ 30 "network a" on hv1 ping -n -c 1 -W 1 $a.2
until_ 30 "network b" on hv1 ping -n -c 1 -W 1 $b.2
explain() {
  for c in hv1 hv2; do on $c ovs-vsctl --columns=name,external_ids,options,error find Interface; on $c ovs-ofctl dump-flows br-int table=43; grep -v DBG "$run/$c/controller.log" | tail -n 20; done
  on hv1 ovs-dpctl dump-flows; on hv2 ovs-appctl -t dpdk-dataplane dpctl/dump-flows; ovn-sbctl list Encap; ovn-sbctl --columns=logical_port,encap list Port_Binding; cat on.a on.b
}

# A pair of machines, one a chassis, with the addresses 10.7.NUMBER.1 and .2: pair NUMBER [ADDRESS-PREFIX]
pair() {
  local n ask
  for n in 1 2; do
    ask=(); [ -z "${2:-}" ] || ask=("external_ids:encap-ip=$2.$n")
    on hv$n ovs-vsctl add-port br-int "m$1$n" -- \
      set interface "m$1$n" type=internal external_ids:iface-id="m$1$n" mtu_request=1300 "${ask[@]}"
    on hv$n ip link set "m$1$n" address "02:00:00:00:0$1:0$n" up; on hv$n ip addr add "10.7.$1.$n/24" dev "m$1$n"
    ovn-nbctl lsp-add ls "m$1$n" -- lsp-set-addresses "m$1$n" "02:00:00:00:0$1:0$n 10.7.$1.$n"
  done
  until_ 60 "pair $1" on hv1 ping -n -c 1 -W 1 "10.7.$1.2"
}
# Requests and replies on the networks a and b while three pings go: passes NUMBER
passes() {
  local watchers=() net
  for net in a b; do
    ip netns exec hv1 tcpdump -n -l -i net-$net 'udp port 6081' > on.$net 2> on.$net.log & watchers+=($!)
    until_ 30 "network $net is watched" grep -q listening on.$net.log > /dev/null
  done
  on hv1 ping -n -c 3 -i 0.3 -W 2 "10.7.$1.2" > ping || true
  sleep 1; kill "${watchers[@]}"; wait "${watchers[@]}" 2> /dev/null || true
  for net in a b; do echo "$(grep -c "10.7.$1.1 > .*ICMP echo request" on.$net) $(grep -c "10.7.$1.2 > .*ICMP echo reply" on.$net)"; done | xargs
}
takes() { # takes WHAT NUMBER REQUESTS-A REPLIES-A REQUESTS-B REPLIES-B: once the switches have it
  local what=$1 number=$2 got; shift 2
  ovn-nbctl --wait=hv sync
  for _ in 1 2 3 4 5; do
    got=$(passes "$number")
    [ "$got" != "$*" ] || { echo "ok: $what: requests and replies on a, then on b: $got"; return; }
  done
  fail "$what: requests and replies on a, then on b: $got instead of $*"
}
pair 1 $a; pair 2 $b; pair 3
takes "encap-ip on network a" 1 3 3 0 0
takes "encap-ip on network b" 2 0 0 3 3
takes "the default" 3 0 0 3 3
for n in 1 2; do on hv$n ovs-vsctl set Open_vSwitch . external_ids:ovn-encap-ip-default=$a.$n; done
takes "another default" 3 3 3 0 0
for n in 1 2; do on hv$n ovs-vsctl set interface m1$n external_ids:encap-ip=$b.$n; done
takes "another encap-ip" 1 0 0 3 3
for n in 1 2; do on hv$n ovs-vsctl remove interface m1$n external_ids encap-ip; done
takes "encap-ip taken away" 1 3 3 0 0

# By the northbound database, which counts before the interface.
for n in 1 2; do ovn-nbctl lsp-set-options m2$n requested-chassis=hv$n requested-encap-ip=$a.$n; done
takes "requested-encap-ip" 2 3 3 0 0
for n in 1 2; do ovn-nbctl clear Logical_Switch_Port m2$n options; done
takes "requested-encap-ip taken away" 2 0 0 3 3

# Our switch has no IPsec: what would go in the clear stays down, and the interface says so.
refused() { [ "$(on hv2 ovs-vsctl --bare --columns=error find Interface type=geneve | grep -c 'the tunnel wants IPsec')" = 4 ]; }
accepted() { ! on hv2 ovs-vsctl --bare --columns=error find Interface type=geneve | grep -q .; }
ovn-nbctl set NB_Global . ipsec=true
until_ 60 "tunnels that want IPsec are refused" refused
ovn-nbctl set NB_Global . ipsec=false
until_ 60 "they are there again" accepted
takes "packets pass again" 1 3 3 0 0

# One tunnel for all, whose ends the flows say.
for n in 1 2; do on hv$n ovs-vsctl set Open_vSwitch . external_ids:ovn-enable-flow-based-tunnels=true; done
flow_based() { [ "$(on "$1" ovs-vsctl --bare --columns=name find Interface type=geneve)" = ovn-geneve ]; }
for c in hv1 hv2; do until_ 30 "$c's flow-based tunnel" flow_based $c; done
until_ 30 "packets pass" on hv1 ping -n -c 1 -W 1 10.7.1.2
takes "flow-based, network a" 1 3 3 0 0
takes "flow-based, network b" 2 0 0 3 3

# An address that goes takes its tunnels along; ports that asked for it have the other one.
for n in 1 2; do on hv$n ovs-vsctl set Open_vSwitch . external_ids:ovn-encap-ip=$a.$n; done
takes "one address" 2 3 3 0 0
for n in 1 2; do kill "$(cat "$run/hv$n/controller.pid")"; done
kill "$(cat "$run/hv2/dpdk-dataplane.pid")" "$(cat "$run/hv1/ovs-vswitchd.pid")" "$(cat "$run/hv1/ovsdb-server.pid")"
