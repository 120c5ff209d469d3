# A card with 1,000 VFs: all are plugged in, with one look at the whole card, and a buffer that overflows loses none.
. "${0%/*}/lib.sh"
sim=/sys/bus/netdevsim
modprobe netdevsim
mount -t debugfs d /sys/kernel/debug
sim_card 11 1000
echo 1000 > $sim/devices/netdevsim11/sriov_numvfs
start_database
ovs-vsctl() { command ovs-vsctl --no-wait "$@"; }
start_ovn hv1 127.0.0.1
until_ 60 "the northbound database" ovn-nbctl ls-add ls
thousand_ports lp 11
count() { [ "$(ovs-vsctl --bare --columns=name find Interface external_ids:ovn-plugged=representor | grep -c .)" = "$1" ]; }
devlink dev eswitch set netdevsim/netdevsim11 mode switchdev
until_ 60 "1,000 VFs are plugged in" count 1000
echo "read again after lost events: $(grep -c 'all are read again' controller.log || true) times"
plugged_right lp 11
kill "$(cat controller.pid)"
