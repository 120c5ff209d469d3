# Geneve, VXLAN, GRE and ERSPAN between our dataplane and the kernel: its tunnel devices, and its openvswitch datapath under Open
# vSwitch's own switch; plain, in a VLAN of the underlay (a VLAN device of the kernel), and in one of the overlay.
. "${0%/*}/lib.sh"
modprobe tun; modprobe openvswitch; modprobe geneve; modprobe vxlan; modprobe ip_gre; modprobe 8021q; modprobe veth

# Our switch here, behind u0; the kernel's in a namespace at the other end.
ip netns add far
ip link add u0 type veth peer name eth0 netns far
ethtool -K u0 tx off > /dev/null; ip netns exec far ethtool -K eth0 tx off > /dev/null
ip link set u0 up; ip -n far link set lo up; ip -n far link set eth0 up
ip -n far addr add 192.0.2.2/24 dev eth0
ip -n far link add link eth0 name eth0.7 type vlan id 7; ip -n far addr add 198.51.100.2/24 dev eth0.7; ip -n far link set eth0.7 up
"$BIN/dpdk-dataplane" --embed="$run" --detach --no-chdir --pidfile --log-file > /dev/null
ovs-vsctl add-br br-ex -- set bridge br-ex datapath_type=netdev -- add-port br-ex u0 -- \
  add-port br-ex u7 tag=7 -- set interface u7 type=internal -- add-br br0 -- set bridge br0 datapath_type=netdev
ip addr add 192.0.2.1/24 dev br-ex; ip link set br-ex up
ip addr add 198.51.100.1/24 dev u7; ip link set u7 up
until_ 30 "the underlay" ping -n -c 1 -W 1 192.0.2.2
until_ 30 "the underlay's VLAN" ping -n -c 1 -W 1 198.51.100.2

inside() { # inside NAME ADDRESS: an internal port of br0
  ovs-vsctl add-port br0 "$1" -- set interface "$1" type=internal mtu_request=1400
  ip addr add "$2" dev "$1"; ip link set "$1" up
}
reaches() { ping -n -c 1 -W 1 "$1"; }
carries() { # carries BYTES ADDRESS
  ping -n -c 3 -i 0.2 -W 1 -s "$1" -M dont "$2"
}

ovs-vsctl add-port br0 g1 -- set interface g1 type=geneve options:remote_ip=192.0.2.2 options:key=100
inside i1 10.1.0.1/24
ip -n far link add gnv type geneve id 100 remote 192.0.2.1; ip -n far addr add 10.1.0.2/24 dev gnv; ip -n far link set gnv mtu 1400 up
until_ 30 "Geneve with the kernel's device" reaches 10.1.0.2
until_ 30 "full packets" carries 1372 10.1.0.2
ip -n far link add link gnv name gnv.9 type vlan id 9; ip -n far addr add 10.9.0.2/24 dev gnv.9; ip -n far link set gnv.9 up
inside i9 10.9.0.1/24; ovs-vsctl set port i9 tag=9
until_ 30 "a VLAN within Geneve" reaches 10.9.0.2

# The same over the VLAN of the underlay, to another key, with VXLAN.
ovs-vsctl add-br br1 -- set bridge br1 datapath_type=netdev -- add-port br1 x1 -- \
  set interface x1 type=vxlan options:remote_ip=198.51.100.2 options:key=200 -- add-port br1 i2 -- \
  set interface i2 type=internal mtu_request=1400
ip addr add 10.2.0.1/24 dev i2; ip link set i2 up
ip -n far link add vx type vxlan id 200 remote 198.51.100.1 dstport 4789 dev eth0.7
ip -n far addr add 10.2.0.2/24 dev vx; ip -n far link set vx mtu 1400 up
until_ 30 "VXLAN with the kernel's device, in a VLAN" reaches 10.2.0.2
until_ 30 "full packets" carries 1372 10.2.0.2

# GRE and ERSPAN, one bridge each. Cached flows serve most packets; the kernel refuses wrong checksums and numbers that go back.
gre() { # gre NUMBER TYPE "OPTIONS OF OURS" KERNEL'S TYPE AND OPTIONS…
  local n=$1 type=$2 ours=$3; shift 3
  ovs-vsctl add-br "b$n" -- set bridge "b$n" datapath_type=netdev -- add-port "b$n" "r$n" -- \
    set interface "r$n" "type=$type" options:remote_ip=192.0.2.2 $ours -- add-port "b$n" "j$n" -- \
    set interface "j$n" type=internal mtu_request=1400
  ip addr add "10.$n.0.1/24" dev "j$n"; ip link set "j$n" up
  ip -n far link add "k$n" type "$@" local 192.0.2.2 remote 192.0.2.1
  ip -n far addr add "10.$n.0.2/24" dev "k$n"; ip -n far link set "k$n" mtu 1400 up
  until_ 30 "$type ($ours)" reaches "10.$n.0.2"
  until_ 30 "full packets" carries 1372 "10.$n.0.2"
  until_ 30 "odd ones, many" ping -n -q -c 40 -i 0.05 -W 2 -s 997 "10.$n.0.2"
  ovs-appctl -t dpdk-dataplane dpctl/dump-flows > flows; grep -q "$type(" flows || fail "cached flows of $type: $(cat flows)"
}
gre 21 gre options:key=21 gretap key 21
gre 22 gre "options:key=22 options:csum=true" gretap key 22 csum
gre 23 gre "options:key=23 options:csum=true options:seq=true" gretap key 23 seq csum
gre 24 erspan "options:key=24 options:erspan_ver=1 options:erspan_idx=0x3" erspan seq key 24 erspan_ver 1 erspan 3

# Open vSwitch's own switch, on the kernel's datapath, in the place of the device. Options of OVN's pass as well.
ip -n far link del gnv
far=$run/far; mkdir -p "$far"
ovsdb-tool create "$far/conf.db" /usr/share/openvswitch/vswitch.ovsschema
theirs() { OVS_RUNDIR=$far OVS_LOGDIR=$far OVS_DBDIR=$far ip netns exec far "$@"; }
theirs ovsdb-server --detach --no-chdir --pidfile --log-file --remote="punix:$far/db.sock" "$far/conf.db" 2> /dev/null
theirs ovs-vsctl --no-wait init
theirs ovs-vswitchd --detach --no-chdir --pidfile --log-file 2> /dev/null
theirs ovs-vsctl add-br br0 -- add-port br0 g1 -- set interface g1 type=geneve options:remote_ip=192.0.2.1 options:key=flow -- \
  add-port br0 i1 -- set interface i1 type=internal mtu_request=1400
ip -n far addr add 10.1.0.2/24 dev i1; ip -n far link set i1 up
# The address is another device's now, which the kernel would find out in up to 45 s (arp(7), base_reachable_time).
ip neigh flush dev i1
map='{class=0x102,type=0x80,len=4}->tun_metadata0'
ovs-ofctl add-tlv-map br0 "$map"; theirs ovs-ofctl add-tlv-map br0 "$map"
explain() {
  ovs-ofctl dump-flows br0; ovs-ofctl dump-ports br0; ovs-appctl -t dpdk-dataplane dpctl/dump-flows; ovs-appctl -t dpdk-dataplane tnl/neigh/show
  theirs ovs-ofctl dump-flows br0; theirs ovs-ofctl dump-ports br0; theirs ovs-dpctl dump-flows
  ip neigh; ip -n far neigh; ip -n far -s link
}
n() { ovs-vsctl get Interface "$1" ofport; }
t() { theirs ovs-vsctl get Interface "$1" ofport; }
ovs-vsctl set interface g1 options:key=flow
ovs-ofctl del-flows br0; theirs ovs-ofctl del-flows br0
ovs-ofctl add-flow br0 "in_port=$(n i1),actions=set_field:100->tun_id,set_field:0x10002->tun_metadata0,output:$(n g1)"
ovs-ofctl add-flow br0 "in_port=$(n g1),tun_id=100,tun_metadata0=0x20001,actions=output:$(n i1)"
theirs ovs-ofctl add-flow br0 "in_port=$(t i1),actions=set_field:100->tun_id,set_field:0x20001->tun_metadata0,output:$(t g1)"
theirs ovs-ofctl add-flow br0 "in_port=$(t g1),tun_id=100,tun_metadata0=0x10002,actions=output:$(t i1)"
until_ 30 "Geneve with the kernel's openvswitch, options included" reaches 10.1.0.2
until_ 30 "full packets" carries 1372 10.1.0.2
theirs ovs-dpctl dump-flows | grep -q 'geneve({class=0x102,type=0x80,len=4' || fail "the kernel's datapath has the option"
kill "$(cat "$far/ovs-vswitchd.pid")" "$(cat "$far/ovsdb-server.pid")" "$(cat dpdk-dataplane.pid)"
