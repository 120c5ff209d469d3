# Mirrors of logical ports on the kernel's openvswitch datapath, under Open vSwitch's own switch: into GRE and ERSPAN tunnels over IPv4
# and IPv6, to a local port, and to another logical port. What arrives there is counted.
. "${0%/*}/lib.sh"
for m in veth openvswitch ip_gre ip6_gre vport_gre act_mirred; do modprobe $m || true; done
start_switch
start_ovn hv1 127.0.0.1
until_ 60 "the northbound database" ovn-nbctl ls-add ls
until_ 30 "br-int" ovs-vsctl br-exists br-int
n=0
for m in vm1 vm2 sink; do
  n=$((n + 1)); machine $m 02:00:00:00:00:0$n 10.7.0.$n/24
  ovn-nbctl lsp-add ls $m -- lsp-set-addresses $m "02:00:00:00:00:0$n 10.7.0.$n"
done
# What receives the tunnels, and a local port that takes copies.
ip netns add probe; ip link add probe type veth peer name eth0 netns probe
ip addr add 172.16.0.1/24 dev probe; ip addr add 2001:db8::1/64 dev probe nodad; ip link set probe up
ip -n probe addr add 172.16.0.100/24 dev eth0; ip -n probe addr add 2001:db8::100/64 dev eth0 nodad; ip -n probe link set eth0 up
ip netns add tap; ip link add tap type veth peer name eth0 netns tap; ip link set tap up; ip -n tap link set eth0 up
ovs-vsctl add-port br-int tap -- set Interface tap external_ids:mirror-id=wiretap
explain() { ovs-vsctl list Mirror; ovs-vsctl --columns=name,type,options,error find Interface; ovs-dpctl show; ovs-dpctl dump-flows; cat seen 2> /dev/null; }

reaches() { ip netns exec vm1 ping -n -c 1 -W 1 "$1"; }
until_ 60 "the machines" reaches 10.7.0.2
until_ 30 "the probe" ping -n -c 1 -W 1 172.16.0.100
until_ 30 "the probe over IPv6" ping -n -c 1 -W 1 2001:db8::100
# seen NAMESPACE FILTER PATTERN: how many packets with that text come, while three pings go from vm1 to vm2 and back
seen() {
  watch "$1" eth0 "$2" seen > /dev/null
  ip netns exec vm1 ping -n -c 3 -i 0.3 -W 2 10.7.0.2 > ping || fail "packets pass: $(cat ping)"
  unwatch
  grep -c -E "$3" seen || true
}
# copies WHAT NUMBER NAMESPACE FILTER PATTERN: so many come, once the switch has taken over what its database says.
copies() {
  local got what=$1 number=$2; shift 2
  ovn-nbctl --wait=hv sync
  # Open vSwitch 3.1 leaves cached flows as they were when the ports of a mirror change, until they are idle for ten seconds.
  ovs-appctl dpctl/del-flows
  for _ in 1 2 3 4 5; do
    got=$(seen "$@")
    [ "$got" != "$number" ] || { echo "ok: $what: $number copies"; return; }
  done
  fail "$what: $got copies instead of $number"
}
# Debian's ovn-nbctl knows neither all kinds of mirrors nor their rules.
nb() { # nb OPERATIONS: as JSON
  ovsdb-client transact "$OVN_NB_DB" "[\"OVN_Northbound\",$1]" > transacted; ! grep -q '"error"' transacted || fail "$(cat transacted)"
}
mirror() { # mirror NAME TYPE INDEX FILTER SINK: a mirror of vm2's packets
  nb "{\"op\":\"insert\",\"table\":\"Mirror\",\"uuid-name\":\"m\",
       \"row\":{\"name\":\"$1\",\"type\":\"$2\",\"index\":$3,\"filter\":\"$4\",\"sink\":\"$5\"}},
      {\"op\":\"mutate\",\"table\":\"Logical_Switch_Port\",\"where\":[[\"name\",\"==\",\"vm2\"]],
       \"mutations\":[[\"mirror_rules\",\"insert\",[\"named-uuid\",\"m\"]]]}"
  [ "$2" = lport ] || until_ 30 "mirror $1" there "$1"
}
there() { [ "$(ovs-vsctl --bare --columns=output_port find Mirror name="$1")" != "" ]; }
change() { # change NAME COLUMN VALUE
  nb "{\"op\":\"update\",\"table\":\"Mirror\",\"where\":[[\"name\",\"==\",\"$1\"]],\"row\":{\"$2\":$3}}"
}
gone() { [ -z "$(ovs-vsctl --bare --columns=name list Mirror)" ]; }
without() { # without NAME
  ovn-nbctl mirror-del "$1"
  until_ 30 "mirror $1 is gone" gone
}
echoes='ICMP echo (request|reply)'
copies "no mirror" 0 probe "proto gre" GRE
mirror m4 gre 1 to-lport 172.16.0.100
copies "GRE, what vm2 gets" 3 probe "proto gre" "GREv0, key=0x1, .*ICMP echo request"
change m4 filter '"both"'
both() { [ "$(ovs-vsctl --bare --columns=select_src_port list Mirror)" != "" ]; }
until_ 30 "the filter" both
copies "GRE, both ways" 6 probe "proto gre" "GREv0, key=0x1, .*$echoes"
change m4 index 7
key() { ovs-vsctl --bare --columns=options find Interface type=gre | grep -q 'key=7'; }
until_ 30 "the other key" key
copies "GRE with another key" 6 probe "proto gre" "GREv0, key=0x7, .*$echoes"
without m4
copies "a mirror that is gone" 0 probe "proto gre" GRE

mirror m6 gre 2 to-lport 2001:db8::100
copies "GRE over IPv6" 3 probe "ip6 proto gre" "key=0x2, .*ICMP echo request"
without m6
mirror e4 erspan 3 to-lport 172.16.0.100
copies "ERSPAN" 3 probe "ip[22:2]=0x88be" gre-proto-0x88be
without e4
mirror e6 erspan 4 to-lport 2001:db8::100
copies "ERSPAN over IPv6" 3 probe "ip6[42:2]=0x88be" gre-proto-0x88be
without e6

mirror l local 0 to-lport wiretap
copies "a local port" 3 tap icmp "ICMP echo request"
# Nobody has that name: the mirror goes, and comes back with the name.
change l sink '"nobody"'
until_ 30 "a sink that is not there" gone
copies "a sink that is not there" 0 tap icmp "$echoes"
ovs-vsctl set Interface tap external_ids:mirror-id=nobody
until_ 30 "its sink comes" there l
copies "its sink comes" 3 tap icmp "ICMP echo request"
without l

mirror p lport 0 both sink
copies "another logical port" 6 sink icmp "$echoes"
nb '{"op":"insert","table":"Mirror_Rule","uuid-name":"r","row":{"priority":100,"match":"icmp4.type == 8","action":"skip"}},
    {"op":"mutate","table":"Mirror","where":[["name","==","p"]],"mutations":[["mirror_rules","insert",["named-uuid","r"]]]}'
copies "a rule" 3 sink icmp "$echoes"
ovn-nbctl mirror-del p
copies "without it" 0 sink icmp "$echoes"
kill "$(cat controller.pid)"
