# Tunnels between two chassis, encrypted by the kernel's ESP: Open vSwitch's own switch on the kernel's datapath, its ovs-monitor-ipsec,
# strongSwan, and our northd and controllers. What goes over the wire between the chassis is watched.
. "${0%/*}/lib.sh"
monitor=/usr/share/openvswitch/scripts/ovs-monitor-ipsec
for m in tun openvswitch geneve veth esp4 xfrm_user; do modprobe $m; done

# A CA, and a certificate for each chassis whose name is the chassis'; another CA says of somebody else that it is hv2. Open vSwitch 3.1
# finds a name only before another attribute, as ovs-pki writes it.
authority() { openssl req -x509 -newkey rsa:2048 -nodes -keyout "$1.key" -out "$1.pem" -days 30 -subj "/CN=$1" 2> /dev/null; }
signed() { # signed FILE CHASSIS AUTHORITY
  openssl req -newkey rsa:2048 -nodes -keyout "$1.key" -out "$1.csr" -subj "/O=lab/CN=$2" 2> /dev/null
  echo "subjectAltName=DNS:$2" > "$1.ext"
  openssl x509 -req -in "$1.csr" -CA "$3.pem" -CAkey "$3.key" -CAcreateserial -out "$1.pem" -days 30 -extfile "$1.ext" 2> /dev/null
}
authority ca; authority other
signed hv1 hv1 ca; signed hv2 hv2 ca; signed rogue hv2 other

# A chassis has namespaces of its own for the network, and for what its IKE daemon keeps in /etc and /run.
declare -A keeper
on() { local c=$1; shift; nsenter -t "${keeper[$c]}" -m -n env OVS_RUNDIR=/run/$c OVS_LOGDIR=/run/$c OVS_DBDIR=/run/$c OVN_RUNDIR=/run/$c OVN_LOGDIR=/run/$c "$@"; }
chassis() { # chassis NAME ADDRESS
  ip netns add "$1"
  mkdir -p "/tmp/$1"; cp -a /etc "/tmp/$1/"
  # A value ends with its line. What an attempt that was refused leaves in the kernel blocks the next one for as long as this, otherwise
  # for 165 s (ovs-monitor-ipsec means to set it and misspells its name).
  printf '%s\n' 'charon {' filelog '{' lab '{' 'path = /run/charon.log' 'default = 1' 'flush_line = yes' '}' '}' \
    'plugins {' 'kernel-netlink {' 'xfrm_acq_expires = 30' '}' '}' '}' > "/tmp/$1/etc/strongswan.d/lab.conf"
  ip netns exec "$1" bash -c "mount --bind /tmp/$1/etc /etc; mount -t tmpfs t /run; mkdir /run/$1; touch /run/ready; exec sleep 100000" &
  keeper[$1]=$!
  until_ 20 "$1's namespaces" nsenter -t "${keeper[$1]}" -m test -e /run/ready
  on "$1" ip link set lo up
}
chassis hv1; chassis hv2
ip link add wire netns hv1 type veth peer name wire netns hv2
on hv1 ip addr add 192.0.2.1/24 dev wire; on hv2 ip addr add 192.0.2.2/24 dev wire
for n in 1 2; do on hv$n ip addr add 2001:db8::$n/64 dev wire nodad; done
for c in hv1 hv2; do on $c ip link set wire up; done

on hv1 mkdir /run/central
central() { on hv1 env OVN_NB_DB=unix:/run/central/ovnnb_db.sock "$@"; }
on hv1 "$BIN/northd" --embed=/run/central --listen=ptcp:6642 --detach --no-chdir --pidfile=/run/central/northd.pid --log-file=/run/central/northd.log > /dev/null
# Where strongSwan looks: an authority counts by lying in cacerts.
install_keys() { cp "$run"/{hv1,hv2,rogue}.pem "/tmp/$1/etc/ipsec.d/certs/"; cp "$run"/{hv1,hv2,rogue}.key "/tmp/$1/etc/ipsec.d/private/"; cp "$run/ca.pem" "/tmp/$1/etc/ipsec.d/cacerts/"; }
present() { # present CHASSIS FILE: the certificate that the chassis shows
  on "$1" ovs-vsctl --no-wait set Open_vSwitch . other_config:certificate="/etc/ipsec.d/certs/$2.pem" \
    other_config:private_key="/etc/ipsec.d/private/$2.key" other_config:ca_cert=/etc/ipsec.d/cacerts/ca.pem
}
for n in 1 2; do
  c=hv$n; install_keys $c
  on $c ovsdb-tool create /run/$c/conf.db /usr/share/openvswitch/vswitch.ovsschema
  on $c ovsdb-server --detach --no-chdir --pidfile --log-file --remote=punix:/run/$c/db.sock /run/$c/conf.db 2> /dev/null
  on $c ovs-vsctl --no-wait init
  on $c ovs-vswitchd --detach --no-chdir --pidfile --log-file 2> /dev/null
  on $c ovs-vsctl set Open_vSwitch . external_ids:system-id=$c external_ids:hostname=$c external_ids:ovn-remote=tcp:192.0.2.1:6642 \
    external_ids:ovn-encap-type=geneve external_ids:ovn-encap-ip=192.0.2.$n
  present $c $c
  on $c "$BIN/controller" --detach --no-chdir --pidfile --log-file > /dev/null
  until_ 30 "$c's br-int" on $c ovs-vsctl br-exists br-int
  on $c ovs-vsctl add-port br-int vm$n -- set interface vm$n type=internal external_ids:iface-id=vm$n mtu_request=1300
  on $c ip link set vm$n address 02:00:00:00:00:0$n up; on $c ip addr add 10.7.0.$n/24 dev vm$n
done
central ovn-nbctl ls-add ls -- lsp-add ls vm1 -- lsp-set-addresses vm1 "02:00:00:00:00:01 10.7.0.1" \
  -- lsp-add ls vm2 -- lsp-set-addresses vm2 "02:00:00:00:00:02 10.7.0.2"

explain() {
  for c in hv1 hv2; do
    on $c ovs-vsctl --columns=name,options,error find Interface type=geneve
    on $c ip xfrm state; on $c ip xfrm policy; on $c ipsec status; on $c tail -n 60 /run/charon.log /run/$c/ovs-monitor-ipsec.log
    on $c cat /etc/ipsec.conf
  done
}
reaches() { on hv1 ping -n -c 1 -W 1 10.7.0.2; }
# wire FILTER: packets that pass the wire while three pings go, or try to
wire() {
  # nsenter becomes tcpdump, which is what is ended.
  nsenter -t "${keeper[hv2]}" -n tcpdump -n -l -i wire "$1" > seen 2> tcpdump.log & local pid=$!
  until_ 20 "the wire is watched" grep -q listening tcpdump.log
  on hv1 ping -n -c 3 -i 0.3 -W 2 10.7.0.2 > /dev/null || true
  sleep 1; kill $pid 2> /dev/null || true; wait $pid 2> /dev/null || true
  grep -c . seen || true
}
packets() { wire "$1" | tail -n 1; }
geneve='udp port 6081'

until_ 60 "packets pass" reaches
[ "$(packets "$geneve")" -ge 6 ] || fail "the tunnel is in clear at first"
for c in hv1 hv2; do
  # The daemon of Open vSwitch starts strongSwan.
  on $c "$monitor" --pidfile --ike-daemon=strongswan --log-file --detach --monitor unix:/run/$c/db.sock > /dev/null 2>&1
done
central ovn-nbctl set NB_Global . ipsec=true
encrypted() { on hv1 ip xfrm state | grep -q 'aead rfc4106(gcm(aes))' && reaches && [ "$(packets esp)" -ge 6 ]; }
nothing_in_clear() { [ "$(packets "$geneve")" = 0 ] || fail "nothing passes in clear: $(cat seen)"; echo "ok: nothing passes in clear"; }
until_ 120 "the tunnel is encrypted" encrypted
nothing_in_clear
on hv1 ping -n -c 3 -i 0.2 -W 2 -s 1272 -M dont 10.7.0.2 > /dev/null || fail "full packets"
echo "ok: full packets"

# A chassis that is started anew has its tunnels encrypted still.
old=$(on hv2 cat /run/hv2/controller.pid); kill "$old"
gone() { [ ! -e "/proc/$1" ]; }
until_ 30 "hv2's controller has ended" gone "$old"
on hv2 "$BIN/controller" --detach --no-chdir --pidfile --log-file > /dev/null
until_ 60 "packets pass after a restart of a controller" encrypted
nothing_in_clear

# Who shows a certificate that the CA has not signed is refused: nothing passes, encrypted or not.
present hv2 rogue
refused() { on hv1 grep -q 'issuer is "CN=other"' /run/charon.log && ! reaches; }
until_ 120 "another authority's certificate is refused" refused
[ "$(packets "esp or $geneve")" = 0 ] || fail "nothing passes without a valid certificate: $(cat seen)"
echo "ok: nothing passes without a valid certificate"
present hv2 hv2
until_ 120 "the tunnel is encrypted again" encrypted
nothing_in_clear

# The ends of the tunnel become others while it runs, over IPv6.
for n in 1 2; do on hv$n ovs-vsctl --no-wait set Open_vSwitch . external_ids:ovn-encap-ip=2001:db8::$n; done
over_ipv6() { on hv1 ip xfrm state | grep -q 'src 2001:db8::1 dst 2001:db8::2' && encrypted; }
until_ 120 "the tunnel is encrypted over IPv6" over_ipv6
nothing_in_clear

central ovn-nbctl set NB_Global . ipsec=false
clear() { reaches && [ "$(packets "$geneve")" -ge 6 ]; }
until_ 60 "the tunnel is in clear again" clear
for c in hv1 hv2; do
  for p in ovs-monitor-ipsec controller ovs-vswitchd ovsdb-server; do kill "$(on $c cat /run/$c/$p.pid)" || true; done
  on $c ipsec stop > /dev/null 2>&1 || true
done
kill "$(on hv1 cat /run/central/northd.pid)" "${keeper[@]}"
