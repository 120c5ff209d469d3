# An e1000e under DPDK's own PCI driver (vfio-pci, an emulated IOMMU): unplugged and plugged while packets pass, its port keeps number,
# flows and row, says what is wrong, and is back by itself. The machine's own monitor (QMP) is the second serial line.
#qemu -device intel-iommu,aw-bits=48,caching-mode=on,intremap=off -device pcie-root-port,id=hole,chassis=1,slot=1
#qemu -netdev hubport,hubid=1,id=h1 -netdev hubport,hubid=1,id=h2
#qemu -device e1000e,netdev=h1,id=nic,bus=hole,mac=52:54:00:00:00:42 -device virtio-net-pci,netdev=h2,mac=52:54:00:00:00:99
#qemu -chardev socket,id=line,path=DIR/qmp,server=on,wait=off -serial chardev:line -chardev socket,id=qmp,path=DIR/qmp
#qemu -mon chardev=qmp,mode=control
#append intel_iommu=on
. "${0%/*}/lib.sh"

# Until the line is set it echoes, so that the monitor may have taken a part of its own greeting for the beginning of a command.
# 0xff has it forget that (QEMU's QMP specification, "Forcing the JSON parser into known-good state"). What it took has an answer.
qmp() {
  local line n
  for n in 1 2 3; do
    printf '\377%s\n' "$1" >&4
    while read -r -t 5 -u 4 line; do
      case "$line" in *'"return"'*) return 0 ;; *'"error"'*) echo "the monitor, asked $1: $line" ;; esac
    done
  done
  fail "the monitor takes no command: $1"
}
card() { grep -l 0x10d3 /sys/bus/pci/devices/*/device 2> /dev/null | sed 's#/device$##; s#.*/##'; }
gone() { [ -z "$(card)" ]; }
bound() { [ "$(basename "$(readlink "/sys/bus/pci/devices/$(card)/driver")")" = vfio-pci ]; }
error() { ovs-vsctl get Interface "$1" error | grep -q "$2"; }
runs() { [ "$(ovs-vsctl get Interface d1 error),$(ovs-vsctl get Interface d1 link_state),$(ovs-vsctl get Interface d1 ofport)" = "[],up,5" ]; }
no_error() { [ "$(ovs-vsctl get Interface d1 error)" = "[]" ]; }
explain() { dmesg | grep -i -E 'pcie|vfio' | tail -n 20; timeout 1 cat <&4 || true; cat /proc/interrupts; }
reaches() { ping -n -c 1 -W 1 10.9.0.2; }

exec 4<> /dev/ttyS1
stty -F /dev/ttyS1 raw -echo
qmp '{"execute": "qmp_capabilities"}'
address=$(card)
[ -n "$address" ] || fail "there is no e1000e"
modprobe virtio_net; modprobe tun
# DPDK looks for VFIO when it starts.
modprobe vfio_iommu_type1 allow_unsafe_interrupts=1; modprobe vfio-pci
for n in /sys/class/net/*; do [ "$(cat "$n/address")" = 52:54:00:00:00:99 ] && peer=${n##*/}; done
ip netns add peer; ip link set "$peer" netns peer
ip -n peer addr add 10.9.0.2/24 dev "$peer"; ip -n peer link set "$peer" up

"$BIN/dpdk-dataplane" --embed="$run" --detach --no-chdir --pidfile --log-file > /dev/null
ovs-vsctl add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure -- add-port br0 i1 -- \
  set interface i1 type=internal ofport_request=7
ip addr add 10.9.0.1/24 dev i1; ip link set i1 up
ovs-ofctl add-flow br0 in_port=5,actions=output:7; ovs-ofctl add-flow br0 in_port=7,actions=output:5

ovs-vsctl --no-wait add-port br0 d1 -- set interface d1 type=dpdk ofport_request=5 "options:dpdk-devargs=$address"
until_ 20 "no driver has it" error d1 "no driver of the kernel has it"
ovs-vsctl --no-wait del-port d1
modprobe e1000e
link=$(ls "/sys/bus/pci/devices/$address/net")
ovs-vsctl --no-wait add-port br0 "$link" -- set interface "$link" type=dpdk
until_ 20 "the kernel's driver has it" error "$link" "$address.*the kernel's driver e1000e has it"
ovs-vsctl --no-wait del-port "$link" -- add-port br0 r1 -- set interface r1 type=dpdk "options:dpdk-devargs=\"$address,representor=[0,1]\""
until_ 20 "several representors are refused" error r1 "is of several functions"
ovs-vsctl --no-wait del-port r1
rmmod e1000e
echo "8086 10d3" > /sys/bus/pci/drivers/vfio-pci/new_id
until_ 10 "vfio-pci has it" bound
ovs-vsctl --no-wait add-port br0 d1 -- set interface d1 type=dpdk ofport_request=5 "options:dpdk-devargs=$address"
until_ 30 "DPDK has it" runs
until_ 30 "packets pass" reaches

for round in 1 2; do
  qmp '{"execute": "device_del", "arguments": {"id": "nic"}}'
  until_ 30 "round $round: the port says that its device is gone" error d1 "the device is gone: it is being taken away"
  until_ 30 "the bus has it back" gone
  [ "$(ovs-vsctl get Interface d1 ofport),$(ovs-vsctl get Interface d1 link_state)" = 5,down ] || fail "number and link"
  [ "$(ovs-ofctl dump-flows br0 | grep -c in_port)" = 2 ] || fail "the flows"
  qmp '{"execute": "device_add", "arguments": {"driver": "e1000e", "id": "nic", "bus": "hole", "netdev": "h1", "mac": "52:54:00:00:00:4'$round'"}}'
  until_ 30 "it is plugged in" bound
  # How long that takes is a figure of docs/benchmarks.md, and of an emulated machine.
  until_ 30 "the port has it" no_error
  until_ 30 "the link is up" runs
  until_ 30 "packets pass again" reaches
done
[ "$(ovs-vsctl get Interface d1 mac_in_use)" = '"52:54:00:00:00:42"' ] || fail "the other card's address"
kill "$(cat dpdk-dataplane.pid)"
