# A card with 1,000 VFs: all are plugged in, with one look at the whole card, and a buffer that overflows loses none.
. "${0%/*}/lib.sh"
sim=/sys/bus/netdevsim
modprobe netdevsim
mount -t debugfs d /sys/kernel/debug
echo "11 1 4" > $sim/new_device
echo 1000 > /sys/kernel/debug/netdevsim/netdevsim11/max_vfs
echo 1000 > $sim/devices/netdevsim11/sriov_numvfs
# Without a switch: what is looked at is what the controller writes.
modprobe openvswitch
ovsdb-tool create conf.db /usr/share/openvswitch/vswitch.ovsschema
ovsdb-server --detach --no-chdir --pidfile --log-file --remote="punix:$run/db.sock" conf.db 2> /dev/null
ovs-vsctl --no-wait init
ovs-vsctl() { command ovs-vsctl --no-wait "$@"; }
start_ovn hv1 127.0.0.1
until_ 60 "the northbound database" ovn-nbctl ls-add ls
ports=()
for n in {0..999}; do
  ports+=(-- lsp-add ls "lp$n" -- lsp-set-options "lp$n" requested-chassis=hv1 vif-plug-type=representor
    vif-plug:representor:pf-pci=netdevsim11 "vif-plug:representor:vf-num=$n")
done
ovn-nbctl "${ports[@]}"
known() { [ "$(ovn-appctl -t "$run/controller.$(cat controller.pid).ctl" plug/show | grep -c "is in legacy mode")" = 1000 ]; }
until_ 90 "all ports are known" known
count() { [ "$(ovs-vsctl --bare --columns=name find Interface external_ids:ovn-plugged=representor | grep -c .)" = "$1" ]; }
devlink dev eswitch set netdevsim/netdevsim11 mode switchdev
until_ 60 "1,000 VFs are plugged in" count 1000
echo "read again after lost events: $(grep -c 'all are read again' controller.log || true) times"
for vf in 0 500 999; do
  netdev=$(devlink port show | sed -n "s#^netdevsim/netdevsim11/.* netdev \([^ ]*\) flavour pcivf .*vfnum $vf .*#\1#p")
  [ "$(ovs-vsctl get Interface "$netdev" external_ids:iface-id)" = "lp$vf" ] || fail "VF $vf is plugged in for another port"
done
kill "$(cat controller.pid)"
