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
