# What ovn-vif's system tests ask of its provider, and more of what a DPU has: the controller waits for the driver and the card, whose
# ports are those of a host's PF, VFs and subfunctions. The PF's address is what devlink says, or a file beside the wire's device.
. "${0%/*}/lib.sh"
sim=/sys/bus/netdevsim of=vif-plug:representor host=00:53:00:00:00:42
start_switch
start_ovn hv1 127.0.0.1
until_ 60 "the northbound database" ovn-nbctl ls-add ls
port vf $of:pf-mac=$host $of:vf-num=0
port pf $of:pf-mac=$host
port sf $of:pf-mac=$host $of:sf-num=88
until_ 30 "there is no such PF" grep -q "vf: no PF of this machine has the address $host" controller.log

# The address may be set before or after the functions come.
modprobe netdevsim
echo "10 1 4" > $sim/new_device
devlink port add netdevsim/netdevsim10/10 flavour pcipf pfnum 0
devlink port function set netdevsim/netdevsim10/10 hw_addr $host
until_ 30 "the PF itself" plugged pf "$(device_of 10 pcipf)"
echo 4 > $sim/devices/netdevsim10/sriov_numvfs
devlink dev eswitch set netdevsim/netdevsim10 mode switchdev
until_ 30 "its VF" plugged vf "$(representor 10 0)"
for p in pf vf; do until_ 30 "$p is in the kernel's datapath" in_kernel "$(ovs-vsctl --bare --columns=name find Interface external_ids:iface-id=$p)"; done
for p in pf vf; do until_ 30 "$p is up" up $p; done

until_ 30 "there is no such subfunction" grep -q "sf: netdevsim/netdevsim10 has no SF 88: it has 0" controller.log
devlink port add netdevsim/netdevsim10/20 flavour pcisf pfnum 0 sfnum 88
until_ 30 "its subfunction" plugged sf "$(device_of 10 pcisf "sfnum 88")"
until_ 30 "it is up" up sf
was=$(device_of 10 pcisf)
devlink port del netdevsim/netdevsim10/20
until_ 30 "the subfunction is gone" error "$was" "has no SF 88"
devlink port add netdevsim/netdevsim10/20 flavour pcisf pfnum 0 sfnum 88
now_is() { plugged sf "$(device_of 10 pcisf)" && no_error "$(device_of 10 pcisf)"; }
until_ 30 "it is back" now_is

# Another host's address: nothing of the PF is the port's any more, until it has the right one again.
vf=$(representor 10 0)
devlink port function set netdevsim/netdevsim10/10 hw_addr 00:53:00:00:00:43
until_ 30 "another address" error "$vf" "no PF of this machine has the address $host"
devlink port function set netdevsim/netdevsim10/10 hw_addr $host
until_ 30 "the right one" no_error "$vf"

# Another agent's plugging, as OVN-Kubernetes does it on a DPU: it is served, and it stays when its port goes. What the CMS finds the card
# by passes through.
other=$(representor 10 1)
ovs-vsctl set Open_vSwitch . external_ids:hostname=dpu1.example external_ids:ovn-cms-options=card-serial-number=MT1234X56789
ovn-nbctl lsp-add ls guest
ovs-vsctl add-port br-int "$other" -- set Interface "$other" external_ids:iface-id=guest external_ids:vf-netdev-name=eth1
until_ 30 "another agent's port is up" up guest
ovn-nbctl lsp-set-options guest requested-chassis=hv1 vif-plug-type=representor $of:pf-mac=$host $of:vf-num=2
until_ 30 "what it is told" grep -q "requested plugging of lport guest, but interface $other .* is not maintained by OVN" controller.log
named() { [ "$(ovn-sbctl get Chassis hv1 hostname),$(ovn-sbctl get Chassis hv1 other_config:ovn-cms-options)" = 'dpu1.example,"card-serial-number=MT1234X56789"' ]; }
until_ 30 "host name and options of the card" named
ovn-nbctl --wait=hv lsp-del guest
sleep 1
[ "$(ovs-vsctl get Interface "$other" external_ids)" = "{iface-id=guest, vf-netdev-name=eth1}" ] || fail "another agent's interface is left alone"
[ -z "$(ovs-vsctl --bare --columns=name find Interface name="$(representor 10 2)")" ] || fail "a port that another agent has plugged in gets a second device"

# What the agents of CMSs run on a card, in their words (OVN-Kubernetes: pkg/cni/helper_linux.go and the DPU node's controller; Neutron:
# os-vif's vif_plug_ovs): against Open vSwitch's switch and a representor of the card, and against our switch with its own database and a
# veth in a representor's place.
at=()
vs() { "${at[@]}" ovs-vsctl --timeout=30 "$@"; }
find_() { vs --no-heading --format=csv --data=bare --columns="$1" find "${@:2}"; }
installed() { # installed DEVICE PORT: what ovnkube polls
  [ "$(vs --if-exists get Interface "$1" external-ids:iface-id external-ids:ovn-installed | tr -d '"' | xargs)" = "$2 true" ]
}
ovnkube_add() { # ovnkube_add DEVICE PORT UID MAC ADDRESS
  [ -z "$(find_ name Interface "external-ids:iface-id=$2")" ] || fail "nobody has $2 yet"
  [ -z "$(find_ external_ids Interface "name=$1")" ] || fail "$1 is nobody's yet"
  vs --if-exists get bridge br-int datapath_type > /dev/null
  [ -z "$(vs --if-exists get Open_vSwitch . external_ids:ovn-pf-encap-ip-mapping)" ] || fail "a key that is not there"
  vs --may-exist add-port br-int "$1" other_config:transient=true -- set interface "$1" external_ids:attached_mac="$4" \
    external_ids:iface-id="$2" external_ids:iface-id-ver="$3" external_ids:sandbox="sandbox-$2" external_ids:ip_addresses="$5" \
    external_ids:vf-netdev-name="$1" -- --if-exists remove interface "$1" external_ids k8s.ovn.org/network \
    -- --if-exists remove interface "$1" external_ids k8s.ovn.org/nad
  [ "$(find_ name interface "external-ids:sandbox=sandbox-$2")" = "$1" ] || fail "the sandbox's interface"
  [ -z "$(find_ _uuid qos "external-ids:sandbox=sandbox-$2")" ] || fail "the sandbox has no QoS"
  "${at[@]}" ip link set "$1" mtu 1400 up
}
ovnkube_del() { # ovnkube_del DEVICE PORT
  find_ external_ids Interface "name=$1" | grep -q "sandbox=sandbox-$2" || fail "$1 is the sandbox's"
  "${at[@]}" ip link set "$1" down
  "${at[@]}" ovs-vsctl --timeout=15 --if-exists del-port br-int "$1"
}
vif() { "${at[@]}" ovs-vsctl --timeout=120 --oneline --format=json "$@"; }
os_vif_add() { # os_vif_add DEVICE PORT MAC VM
  vif -- --may-exist add-port br-int "$1" -- set Interface "$1" external_ids:iface-id="$2" external_ids:iface-status=active \
    external_ids:attached-mac="$3" external_ids:vm-uuid="$4" > /dev/null
  # It asks whether the port is there, and whether the database knows mtu_request.
  vif -- list-ports br-int | grep -q "$1" || fail "$1 is listed"
  vif -- --columns=mtu_request list Interface | grep -q '"headings":\["mtu_request"\]' || fail "mtu_request is a column"
  "${at[@]}" ip link set "$1" up
}
down() { [ "$(ovn-nbctl get Logical_Switch_Port "$1" up)" = false ]; }
uid=7d3c1f0e-5a4b-4c7e-9d1a-0123456789ab vm=5f0c7a52-8a40-4a27-94a4-6f8f1d6f0c11 net=0b6f4a0e-2f0b-4f4e-8a53-9f4f4b7f7a01
agents() { # agents CHASSIS HOSTNAME SERIAL DEVICE DEVICE
  local pod=shop_web-$1 found
  # Neutron looks for the card by its serial number among the options, and asks for the chassis by its host name.
  vs set Open_vSwitch . external_ids:hostname="$2" external_ids:ovn-cms-options=enable-chassis-as-extport-host,card-serial-number="$3"
  with_serial() { found=$(ovn-sbctl --bare --columns=hostname find Chassis "other_config:ovn-cms-options=\"enable-chassis-as-extport-host,card-serial-number=$1\""); [ -n "$found" ]; }
  until_ 30 "$1: the card is found by its serial number" with_serial "$3"
  [ "$found" = "$2" ] || fail "the card's host name is $found"
  ovn-nbctl lsp-add ls "$net-$1" -- lsp-set-addresses "$net-$1" "fa:16:3e:00:00:07 10.8.0.7" -- lsp-set-options "$net-$1" requested-chassis="$2"
  os_vif_add "$4" "$net-$1" fa:16:3e:00:00:07 $vm
  until_ 30 "$1: the port of os-vif is up" up "$net-$1"
  # A pod of the same name as one that is gone: only the interface with the right iface-id-ver is the port's.
  ovn-nbctl lsp-add ls "$pod" -- lsp-set-addresses "$pod" "0a:58:0a:08:00:08 10.8.0.8" \
    -- lsp-set-options "$pod" requested-chassis="$2" iface-id-ver=another
  ovnkube_add "$5" "$pod" $uid 0a:58:0a:08:00:08 10.8.0.8/24
  sleep 2; ! installed "$5" "$pod" || fail "an interface of another pod is not taken"
  ovn-nbctl lsp-set-options "$pod" requested-chassis="$2" iface-id-ver=$uid
  until_ 30 "$1: ovnkube's port is installed" installed "$5" "$pod"
  until_ 30 "$1: it is up" up "$pod"
}
agents_end() { # agents_end CHASSIS DEVICE DEVICE
  vif -- --if-exists del-port br-int "$2"
  ovnkube_del "$3" "shop_web-$1"
  for p in "$net-$1" "shop_web-$1"; do until_ 30 "$1: $p is down" down "$p"; ovn-nbctl lsp-del "$p"; done
}
agents hv1 dpu1.example MT1234X56789 "$(representor 10 2)" "$(representor 10 3)"
agents_end hv1 "$(representor 10 2)" "$(representor 10 3)"

modprobe tun; modprobe veth
new_chassis dpu2; at=(on dpu2)
on dpu2 "$BIN/dpdk-dataplane" --embed="$run/dpu2" --detach --no-chdir --pidfile --log-file > /dev/null
on dpu2 ovs-vsctl set Open_vSwitch . other_config:pmd-sleep-max=5000 -- add-br br-int \
  -- set bridge br-int datapath_type=netdev fail_mode=secure
join dpu2 127.0.0.2
for n in 2 3; do
  ip netns add guest$n; ip link add pf0vf$n netns dpu2 type veth peer name eth0 netns guest$n
  ip netns exec guest$n ethtool -K eth0 tx off > /dev/null
done
ip -n guest2 link set eth0 address fa:16:3e:00:00:07 up; ip -n guest2 addr add 10.8.0.7/24 dev eth0
ip -n guest3 link set eth0 address 0a:58:0a:08:00:08 up; ip -n guest3 addr add 10.8.0.8/24 dev eth0
agents dpu2 dpu2.example MT9876X54321 pf0vf2 pf0vf3
until_ 30 "their machines reach each other" ip netns exec guest2 ping -n -c 1 -W 1 10.8.0.8
agents_end dpu2 pf0vf2 pf0vf3
kill "$(cat "$run/dpu2/controller.pid")" "$(cat "$run/dpu2/dpdk-dataplane.pid")"

# A driver that does not tell devlink. netdevsim's wire is port 1: behind it is PF 1.
echo "11 1 4" > $sim/new_device
wire=$(device_of 11 physical)
mkdir -p "$run/sys/smart_nic/pf"
cp "/sys/class/net/$wire/ifindex" "$run/sys/"
printf '%s\n' 'MAC        : 00:53:00:00:00:51' 'MaxTxRate  : 0' 'MinTxRate  : 0' 'State      : Follow' '' > "$run/sys/smart_nic/pf/config"
mount --bind "$run/sys" "$(realpath "/sys/class/net/$wire")"
port old $of:pf-mac=00:53:00:00:00:51
port oldvf $of:pf-mac=00:53:00:00:00:51 $of:vf-num=2
devlink port add netdevsim/netdevsim11/10 flavour pcipf pfnum 1
until_ 30 "a PF whose address is in the driver's file" plugged old "$(device_of 11 pcipf)"
echo 4 > $sim/devices/netdevsim11/sriov_numvfs
devlink dev eswitch set netdevsim/netdevsim11 mode switchdev
until_ 30 "its VF" plugged oldvf "$(device_of 11 pcivf "pfnum 1 vfnum 2 ")"
for p in old oldvf; do until_ 30 "$p is up" up $p; done
"$BIN/isthmusctl" nic show --table | grep -q "00:53:00:00:00:51" || fail "nic show says the address: $("$BIN/isthmusctl" nic show --table)"
kill "$(cat controller.pid)"
