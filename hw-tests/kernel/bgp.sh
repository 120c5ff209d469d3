# Dynamic routing of a gateway port that fails over: two gateways with our switch and controller tell a fabric by BGP
# (FRR) of a floating IP; the route is by the gateway that has the port, and follows it when that dies or is relieved.
#
#              10.0.0.5, floating 203.0.113.5
#   machine ── hv (kernel's datapath) ─┬─ gw1: r-ex ─ br-ex ─ VRF, FRR ─ to-gw1 ─┐
#                               Geneve └─ gw2: r-ex ─ br-ex ─ VRF, FRR ─ to-gw2 ─┴─ fabric, FRR: 198.51.100.1
#qemu -m 4096
. "${0%/*}/lib.sh"
for m in tun openvswitch geneve veth vrf bridge; do modprobe $m; done
floating=203.0.113.5 floating6=2001:db8:203::5 vrf=ovnvrf100
frr=/usr/lib/frr

start_central
until_ 60 "the northbound database" ovn-nbctl ls-add in

# Who forwards: addresses outlast that a link joins a VRF, which takes it down and up.
forwards() {
  on "$1" sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv6.conf.all.keep_addr_on_down=1 \
    net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 \
    net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0
}
for c in hv gw1 gw2 fabric; do new_chassis $c; forwards $c; done
ip netns add machine; ip -n machine link set lo up

# The underlay.
ip link add under type bridge; ip link set under up
wire() { # wire CHASSIS
  ip link add "u-$1" type veth peer name under0 netns "$1"; ip link set "u-$1" master under up
  on "$1" ethtool -K under0 tx off > /dev/null; on "$1" ip link set under0 up
}
for c in hv gw1 gw2; do wire $c; done
on hv ip addr add 192.0.2.1/24 dev under0
kernel_switch hv

# What the machine of a gateway gives its switch, again after that was started anew. br-ex of both gateways has the same
# addresses: the next hop of the logical router, wherever its port is.
start_gateway() {
  on "$1" "$BIN/dpdk-dataplane" --embed="$run/$1" --detach --no-chdir --pidfile --log-file > /dev/null
}
links() {
  on "$1" ip link set br-under up; on "$1" ip addr replace "192.0.2.1${1#gw}/24" dev br-under
  on "$1" ip link set br-ex address 02:00:00:00:64:fe; on "$1" ip link set br-ex up
  on "$1" ip addr replace 100.64.0.254/24 dev br-ex; on "$1" ip addr replace fd00:64::fe/64 dev br-ex nodad
  ! on "$1" ip link show $vrf > /dev/null 2>&1 || on "$1" ip link set br-ex master $vrf
}
for n in 1 2; do
  c=gw$n
  ip link add fab0 netns $c type veth peer name to-$c netns fabric
  on $c ip addr add 198.18.$n.1/30 dev fab0; on $c ip addr add fd00:18:$n::1/64 dev fab0 nodad
  on $c ip link set fab0 up
  on fabric ip addr add 198.18.$n.2/30 dev to-$c; on fabric ip addr add fd00:18:$n::2/64 dev to-$c nodad
  on fabric ip link set to-$c up
  start_gateway $c
  # An emulated machine has other things to do than to poll.
  on $c ovs-vsctl set Open_vSwitch . other_config:pmd-sleep-max=5000 external_ids:ovn-bridge-mappings=ext:br-ex
  on $c ovs-vsctl add-br br-under -- set bridge br-under datapath_type=netdev -- add-port br-under under0 \
    -- add-br br-ex -- set bridge br-ex datapath_type=netdev \
    -- add-br br-int -- set bridge br-int datapath_type=netdev fail_mode=secure
  on $c ip link add $vrf type vrf table 100; on $c ip link set $vrf up; on $c ip link set fab0 master $vrf
  links $c
  join $c 192.0.2.1$n
done
on fabric ip addr add 198.51.100.1/32 dev lo; on fabric ip addr add 2001:db8:100::1/128 dev lo
join hv 192.0.2.1

# The logical network.
ip link add vm1 netns hv type veth peer name eth0 netns machine
ip -n machine link set eth0 address 02:00:00:00:00:05 up; ip -n machine addr add 10.0.0.5/24 dev eth0
ip -n machine addr add fd00:10::5/64 dev eth0 nodad
ip -n machine link set eth0 mtu 1400; ip netns exec machine ethtool -K eth0 tx off > /dev/null
ip -n machine route add default via 10.0.0.1; ip -n machine -6 route add default via fd00:10::1
on hv ip link set vm1 up; on hv ovs-vsctl add-port br-int vm1 -- set interface vm1 external_ids:iface-id=vm1
ip netns exec machine busybox httpd -p 80 -h "$run"; echo "the machine" > "$run/page"
# An emulated machine misses packets of 100 ms.
ovn-nbctl set NB_Global . options:bfd-min-rx=500 options:bfd-min-tx=500 options:bfd-mult=3 \
  -- lsp-add in vm1 -- lsp-set-addresses vm1 "02:00:00:00:00:05 10.0.0.5 fd00:10::5" \
  -- lr-add r -- lrp-add r r-in 02:00:00:00:00:01 10.0.0.1/24 fd00:10::1/64 \
  -- lrp-add r r-ex 02:00:00:00:64:01 100.64.0.1/24 fd00:64::1/64 \
  -- lsp-add in in-r -- lsp-set-type in-r router -- lsp-set-addresses in-r router \
  -- lsp-set-options in-r router-port=r-in \
  -- ls-add ex -- lsp-add ex ex-r -- lsp-set-type ex-r router -- lsp-set-addresses ex-r router \
  -- lsp-set-options ex-r router-port=r-ex \
  -- lsp-add ex ex-net -- lsp-set-type ex-net localnet -- lsp-set-addresses ex-net unknown \
  -- lsp-set-options ex-net network_name=ext
ovn-nbctl lr-nat-add r dnat_and_snat $floating 10.0.0.5 -- lr-nat-add r dnat_and_snat $floating6 fd00:10::5 \
  -- lr-route-add r 0.0.0.0/0 100.64.0.254 -- lr-route-add r ::/0 fd00:64::fe \
  -- ha-chassis-group-add gws -- ha-chassis-group-add-chassis gws gw1 20 -- ha-chassis-group-add-chassis gws gw2 10
group=$(ovn-nbctl --bare --columns=_uuid find HA_Chassis_Group name=gws)
ovn-nbctl set Logical_Router_Port r-ex ha_chassis_group="$group" \
  -- set Logical_Router r options:dynamic-routing=true options:dynamic-routing-vrf-id=100 \
  options:dynamic-routing-redistribute=nat,connected options:dynamic-routing-no-learning=true \
  options:dynamic-routing-v4-prefix-nexthop=100.64.0.1 'options:dynamic-routing-v6-prefix-nexthop="fd00:64::1"'

# FRR: bgp NAMESPACE, with the configuration of bgpd.
bgp() {
  local dir=$run/$1/frr d; mkdir -p "$dir"; cat > "$dir/bgpd.conf"; : > "$dir/zebra.conf"; chown -R frr:frrvty "$dir"
  for d in zebra bgpd; do
    on "$1" $frr/$d -d -f "$dir/$d.conf" -i "$dir/$d.pid" -z "$dir/zserv.api" --vty_socket "$dir" -P 0 \
      --log "file:$dir/$d.log"
    until_ 30 "$1's $d" test -e "$dir/$d.vty"
  done
}
chmod 755 "$run" "$run"/*/
for n in 1 2; do
  bgp gw$n << B
frr defaults datacenter
router bgp 65001 vrf $vrf
 bgp router-id 198.18.$n.1
 no bgp ebgp-requires-policy
 neighbor 198.18.$n.2 remote-as 65000
 neighbor 198.18.$n.2 timers connect 1
 neighbor fd00:18:$n::2 remote-as 65000
 neighbor fd00:18:$n::2 timers connect 1
 address-family ipv4 unicast
  redistribute kernel
 exit-address-family
 address-family ipv6 unicast
  redistribute kernel
  neighbor fd00:18:$n::2 activate
 exit-address-family
B
done
{
  printf '%s\n' "frr defaults datacenter" "router bgp 65000" " bgp router-id 198.51.100.1" \
    " no bgp ebgp-requires-policy"
  for a in 198.18.1.1 fd00:18:1::1 198.18.2.1 fd00:18:2::1; do
    printf ' neighbor %s\n' "$a remote-as 65001" "$a timers connect 1"
  done
  printf '%s\n' " address-family ipv4 unicast" "  network 198.51.100.1/32" " exit-address-family" \
    " address-family ipv6 unicast" "  network 2001:db8:100::1/128" \
    "  neighbor fd00:18:1::1 activate" "  neighbor fd00:18:2::1 activate" " exit-address-family"
} | bgp fabric

explain() {
  local c; set +e
  for c in gw1 gw2; do
    echo "--- $c"; on $c ip route show table 100; on $c ip -6 route show table 100; on $c ip -br addr; on $c ip rule
    on $c vtysh --vty_socket "$run/$c/frr" -d bgpd -c "show bgp vrf all summary" -c "show bgp vrf all ipv4"
    on $c ovs-vsctl --columns=name,bfd_status,error find Interface type=geneve; on $c ip neigh
    grep -v DBG "$run/$c/controller.log" | tail -n 25; tail -n 8 "$run/$c/dpdk-dataplane.log"
  done
  echo "--- fabric"; on fabric ip route; on fabric ip -6 route; tail -n 20 "$run"/*/frr/*.log
  ovn-sbctl show; free -m
}
# Whether the fabric's only route to the floating IP, of each family, is by a gateway.
by() {
  [ "$(on fabric ip route show $floating | sed -n 's/.* via \([0-9.]*\) .*/\1/p')" = "198.18.${1#gw}.1" ] || return 1
  [ "$(on fabric ip -6 route show $floating6 | sed -n 's/.* dev \(to-gw[12]\) .*/\1/p')" = "to-$1" ]
}
reaches() {
  on fabric ping -n -c 1 -W 2 -I 198.51.100.1 $floating && on fabric ping -n -c 1 -W 2 -I 2001:db8:100::1 $floating6
}
page() { # page ADDRESS
  local ask='exec 3<> "/dev/tcp/$0/80" && printf "GET /page HTTP/1.0\r\n\r\n" >&3 && tail -n 1 <&3'
  [ "$(on fabric timeout 3 bash -c "$ask" "$1")" = "the machine" ]
}
served() { # served GATEWAY: everything is as it is to be
  until_ 60 "the route is by $1" by "$1"
  until_ 60 "packets pass by $1" reaches
  until_ 30 "TCP passes by $1" page $floating
  until_ 30 "TCP over IPv6 passes by $1" page $floating6
}
# What stands in a gateway's table of the controller's.
told() { { on "$1" ip route show table 100 proto 84; on "$1" ip -6 route show table 100 proto 84; } 2> /dev/null; }
tells() {
  told "$1" | grep -q "^$floating via 100.64.0.1 dev br-ex" \
    && told "$1" | grep -q "^$floating6 via fd00:64::1 dev br-ex"
}
silent() { [ -z "$(told "$1")" ]; }
# moves WHAT TO COMMAND...: the command is carried out; how long until the fabric's route is by TO, and the longest time
# without a reply to a ping of every 50 ms, or as often as the emulated machine can.
moves() {
  local what=$1 to=$2 start pid; shift 2
  ip netns exec fabric ping -n -D -i 0.05 -I 198.51.100.1 $floating > pings 2>&1 & pid=$!
  sleep 1; start=$(now)
  "$@"
  until_ 120 "$what: the route is by $to" by "$to"
  awk -v a="$start" -v b="$(now)" -v w="$what" 'BEGIN { printf "measured: %s: the route moves in %.2f s\n", w, b - a }'
  until_ 60 "packets pass" reaches
  sleep 1; kill -INT $pid; wait $pid || true
  sed -n 's/^\[\([0-9.]*\)\].* bytes from.*/\1/p' pings | awk -v w="$what" '
    NR > 1 && $1 - last > most { most = $1 - last } { last = $1 }
    END { printf "measured: %s: at most %.2f s without a reply\n", w, most }'
  served "$to"
}
pid_of() { cat "$run/$1/$2.pid"; }
priority() { ovn-nbctl ha-chassis-group-add-chassis gws "$1" "$2"; }
start_controller() { on "$1" "$BIN/controller" --detach --no-chdir --pidfile --log-file > /dev/null; }
# The gateway's switch is started anew, and serves.
revive() { start_gateway "$1"; until_ 60 "$1's br-ex" on "$1" ip link show br-ex; links "$1"; }

served gw1
until_ 10 "gw1 tells" tells gw1; silent gw2 || fail "gw2 tells as well"
# Of connected networks that of the gateway port is told. zebra prefers br-ex's own, so only the kernel's table has it.
told gw1 | grep -q "^100.64.0.0/24 " || fail "the gateway port's network is told"

moves "other priorities" gw2 priority gw2 30
until_ 10 "gw1 is silent" silent gw1
moves "the former priorities" gw1 priority gw2 10
until_ 10 "gw2 is silent" silent gw2

# A dead controller moves nothing.
kill -KILL "$(pid_of gw1 controller)"; sleep 3
by gw1 || fail "the route stays without a controller"
reaches > /dev/null || fail "packets pass without a controller"
tells gw1 || fail "gw1 tells without a controller"
echo "ok: nothing moves when a controller dies"
start_controller gw1

served gw1
moves "the switch dies" gw2 kill -KILL "$(pid_of gw1 dpdk-dataplane)"
until_ 20 "gw1 is silent" silent gw1
moves "it is back" gw1 revive gw1

# On a machine that goes on, br-ex outlasts both of them, without carrier, and the routes by it do; FRR would go on telling
# them. Who looks after the switch sets the device down (systemd: ExecStopPost).
both() { kill -KILL "$(pid_of gw1 dpdk-dataplane)" "$(pid_of gw1 controller)"; on gw1 ip link set br-ex down; }
moves "the switch and its controller die" gw2 both
until_ 20 "gw1 is silent" silent gw1
back() { revive gw1; start_controller gw1; }
moves "they are back" gw1 back

leaves() { on gw1 ovs-appctl -t "$run/gw1/controller.$(pid_of gw1 controller).ctl" exit; }
moves "the controller exits" gw2 leaves
silent gw1 || fail "the controller took its routes away: $(told gw1)"
moves "it is back" gw1 start_controller gw1

# The controller makes the VRF where the port is, and takes it away elsewhere. Who looks after links puts them into it,
# here a loop, elsewhere a rule of udev.
joins() { # joins GATEWAY: as long as the machine runs
  on "$1" ip -o monitor link | while read -r line; do
    case "$line" in *": $vrf: <"*UP*) ;; *) continue ;; esac
    for l in fab0 br-ex; do on "$1" ip link set $l master $vrf 2> /dev/null || true; done
  done
}
vrf_of() { on "$1" ip link show $vrf; }
no_vrf() { ! on "$1" ip link show $vrf 2> /dev/null; }
for c in gw1 gw2; do on $c ip link del $vrf; joins $c & done
sleep 1
ovn-nbctl set Logical_Router_Port r-ex options:dynamic-routing-maintain-vrf=true
until_ 30 "the controller makes the VRF" vrf_of gw1
served gw1
no_vrf gw2 || fail "gw2 has the VRF as well"
moves "other priorities, VRFs of the controllers" gw2 priority gw2 30
until_ 10 "gw1's VRF is gone" no_vrf gw1
moves "the switch dies, VRFs of the controllers" gw1 kill -KILL "$(pid_of gw2 dpdk-dataplane)"
until_ 20 "gw2's VRF is gone" no_vrf gw2
leaves
until_ 20 "the controller takes its VRF along" no_vrf gw1
