# Representors of netdevsim's VFs, plugged by the controller into the kernel's openvswitch datapath under Open vSwitch's own switch.
. "${0%/*}/lib.sh"
sim=/sys/bus/netdevsim

modprobe netdevsim
echo "10 1 4" > $sim/new_device
echo 4 > $sim/devices/netdevsim10/sriov_numvfs
start_switch
start_ovn hv1 127.0.0.1
until_ 60 "the northbound database" ovn-nbctl ls-add ls

of=vif-plug:representor
port lp0 $of:pf-pci=netdevsim10 $of:vf-num=0
until_ 30 "legacy mode is said" grep -q "lp0: netdevsim/netdevsim10 is in legacy mode" controller.log
devlink dev eswitch set netdevsim/netdevsim10 mode switchdev
r0=$(representor 10 0) r1=$(representor 10 1)
until_ 30 "VF 0 is plugged in" plugged lp0 "$r0"
until_ 30 "it is in the kernel's datapath" in_kernel "$r0"
until_ 30 "its port is up" up lp0

physical=$(device_of 10 physical)
port lp1 $of:pf-mac="$(cat /sys/class/net/"$physical"/address)" $of:vf-num=1
until_ 30 "VF 1 by its PF's address" plugged lp1 "$r1"
port bad1 $of:pf-pci=netdevsim10 $of:vf-num=abc
port bad2 $of:pf-pci=netdevsim10 $of:vf-num=77
port bad3 $of:pf-pci=netdevsim10 $of:vf-num=0
for text in 'bad1: .*"abc" is no number' 'bad2: .*has no VF 77: it has 4' "bad3: its device $r0 is plugged in for lport lp0"; do
  until_ 30 "$text" grep -q "$text" controller.log
done

ip link set "$r0" down; ip link set "$r0" name red
until_ 30 "the other name" plugged lp0 red
until_ 30 "the other name in the kernel's datapath" in_kernel red

# A reload takes the VFs away, leaves the card in legacy mode and gives its PF another address.
devlink dev reload netdevsim/netdevsim10
until_ 30 "the card is gone" error red "legacy mode"
devlink dev eswitch set netdevsim/netdevsim10 mode switchdev
echo 4 > $sim/devices/netdevsim10/sriov_numvfs
until_ 30 "VF 0 is back" plugged lp0 "$(representor 10 0)"
until_ 30 "and has no error" no_error "$(representor 10 0)"
until_ 30 "and is in the kernel's datapath" in_kernel "$(representor 10 0)"
until_ 30 "and is up" up lp0

ovn-nbctl lsp-del lp0
# Another port waited for VF 0.
until_ 30 "VF 0 is the other port's" plugged bad3 "$(representor 10 0)"
ovn-nbctl set Logical_Switch_Port lp1 "options:\"$of:pf-mac\"=\"$(cat /sys/class/net/eth0/address)\""
until_ 30 "VF 1 by its PF's other address" plugged lp1 "$(representor 10 1)"
kill "$(cat controller.pid)"
