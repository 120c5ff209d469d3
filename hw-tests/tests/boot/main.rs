//! Real clients and machines that boot, behind the external port of a chassis and a switch that is no OVN. The clients and the
//! firmware are the judges; nothing of them is ours.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod leases;
mod prefix;
mod rack;
mod takeover;
mod three;

use common::{Guard, able};
use hw_tests::lab::until;
use rack::{PATIENCE, Rack, has, lines, script};
use std::path::Path;
use std::time::Duration;

/// What iPXE does once it has its script.
const SCRIPT: &str = "#!ipxe\necho The rack boots ${platform} at ${net0/ip}\nsleep 600\n";

#[test]
fn udhcpc_takes_its_lease() {
    let _one = Guard::take();
    if !able(&["ovn-nbctl", "udhcpc"]) {
        return;
    }
    let rack = Rack::start().unwrap();
    let (script, out) = script(&rack, "udhcpc.sh").unwrap();
    rack.lab.exec("bm1", "udhcpc", &["-i", "eth0", "-n", "-q", "-f", "-t", "20", "-s", &script]).unwrap();
    lines(&out, &["event=bound", "ip=10.0.0.4", "router=10.0.0.1", "dns=10.0.0.1", "mtu=1400", "lease=3600"]).unwrap();
    has(&rack.trace().unwrap(), &["DISCOVER", "OFFER 10.0.0.4", "REQUEST", "ACK 10.0.0.4"]).unwrap();
}

#[test]
fn dhclient_takes_both_leases() {
    let _one = Guard::take();
    if !able(&["ovn-nbctl", "dhclient"]) {
        return;
    }
    let rack = Rack::start().unwrap();
    let dir = rack.lab.machine_dir("bm1");
    let path = |f: &str| dir.join(f).display().to_string();
    let (script, out) = script(&rack, "dhclient.sh").unwrap();
    let run = |family: &str, more: &[&str]| {
        let (leases, pid) = (path(&format!("leases{family}")), path(&format!("pid{family}")));
        std::fs::write(&leases, "").unwrap();
        let fixed = [family, "-1", "-q", "-cf", "/dev/null", "-sf", &script, "-lf", &leases, "-pf", &pid];
        rack.lab.exec("bm1", "dhclient", &[&fixed[..], more, &["eth0"]].concat()).unwrap();
    };
    run("-4", &[]);
    lines(&out, &["new_ip_address=10.0.0.4", "new_routers=10.0.0.1", "new_domain_name=rack.test"]).unwrap();
    // Asked for a prefix as well, the chassis has none, and the address is taken all the same.
    until("the link's own address", PATIENCE, || {
        let own = rack.lab.ip("bm1", &["-6", "addr", "show", "dev", "eth0", "scope", "link", "-tentative"])?;
        has(&own, &["fe80"])
    })
    .unwrap();
    run("-6", &["-N", "-P"]);
    lines(&out, &["new_ip6_address=fd00::4", "new_dhcp6_name_servers=fd00::1", "new_dhcp6_domain_search=rack.test."])
        .unwrap();
    has(&rack.trace().unwrap(), &["DHCPv6 SOLICIT", "ADVERTISE fd00::4", "REPLY fd00::4"]).unwrap();
}

#[test]
fn rdisc6_hears_the_router() {
    let _one = Guard::take();
    if !able(&["ovn-nbctl", "rdisc6"]) {
        return;
    }
    let rack = Rack::start().unwrap();
    until("an advertisement", PATIENCE, || {
        let text = rack.lab.exec("bm1", "rdisc6", &["-1", "-r", "3", "-w", "2000", "eth0"])?;
        has(&text, &["fd00::/64", "Stateful address conf.    :          Yes", "1400 bytes", "02:00:00:00:00:01"])
    })
    .unwrap();
}

#[test]
fn dig_gets_every_kind_of_name() {
    let _one = Guard::take();
    if !able(&["ovn-nbctl", "dig"]) {
        return;
    }
    let rack = Rack::start().unwrap();
    rack.lab.ip("bm1", &["addr", "add", "10.0.0.4/24", "dev", "eth0"]).unwrap();
    let ask = |question: &[&str]| {
        let fixed = ["@10.0.0.1", "+tries=3", "+time=2"];
        rack.lab.exec("bm1", "dig", &[&fixed[..], question].concat())
    };
    for (question, answer) in [
        (&["bm1.rack.test", "A"][..], "IN\tA\t10.0.0.4"),
        (&["BM1.rack.test", "AAAA"], "IN\tAAAA\tfd00::4"),
        (&["-x", "10.0.0.4"], "IN\tPTR\tbm1.rack.test."),
        (&["+noedns", "bm1.rack.test", "A"], "IN\tA\t10.0.0.4"),
    ] {
        until("an answer", PATIENCE, || has(&ask(question)?, &["status: NOERROR", answer])).unwrap();
    }
}

/// Whether machines can boot here.
fn bootable(more: &[&str]) -> bool {
    able(&[&["ovn-nbctl", "qemu-system-x86_64", "dnsmasq", "busybox"], more].concat())
}

#[test]
fn a_bios_boots_by_its_ipxe_rom() {
    let _one = Guard::take();
    if !bootable(&["/usr/lib/ipxe/qemu/pxe-virtio.rom"]) {
        return;
    }
    let mut rack = Rack::start().unwrap();
    rack.serve(&[("bios.ipxe", SCRIPT.as_bytes())]).unwrap();
    rack.boot(&[
        ("ipxe-bios", "http://10.0.0.2/bios.ipxe"),
        ("ipxe", "http://10.0.0.2/nothing"),
        ("bios", "wrong.kpxe"),
    ])
    .unwrap();
    let args = ["-machine", "pc,graphics=off", "-boot", "n"];
    rack.machine(&args, "", "The rack boots pcbios at 10.0.0.4", Duration::from_secs(240)).unwrap();
    has(&rack.trace().unwrap(), &["(bios, iPXE)", "loads http://10.0.0.2/bios.ipxe (ipxe-bios)"]).unwrap();
}

/// Boots a machine with UEFI firmware: a first file by its own means, and iPXE's script then, until a line stands there.
fn uefi(rules: impl Fn(&Rack), firmware: &[&str], line: &str, seen: &[&str]) {
    const CODE: &str = "/usr/share/OVMF/OVMF_CODE_4M.fd";
    const VARIABLES: &str = "/usr/share/OVMF/OVMF_VARS_4M.fd";
    const LOADER: &str = "/usr/lib/ipxe/ipxe.efi";
    let _one = Guard::take();
    // Minutes under emulation: `make test-boot` asks for it.
    if std::env::var_os("ISTHMUS_BOOT").is_none() {
        return needs::skip_always("UEFI machines boot in `make test-boot`");
    }
    if !bootable(&[CODE, VARIABLES, LOADER]) {
        return;
    }
    let mut rack = Rack::start().unwrap();
    let loader = std::fs::read(LOADER).unwrap();
    let dir = rack.serve(&[("loader.efi", &loader), ("efi.ipxe", SCRIPT.as_bytes())]).unwrap();
    rules(&rack);
    let variables = dir.with_file_name("variables");
    std::fs::copy(Path::new(VARIABLES), &variables).unwrap();
    let flash = [
        format!("if=pflash,unit=0,format=raw,readonly=on,file={CODE}"),
        format!("if=pflash,unit=1,format=raw,file={}", variables.display()),
    ];
    let args = [&["-machine", "q35", "-drive", &flash[0], "-drive", &flash[1]][..], firmware].concat();
    // Without the device's ROM the firmware's own network stack is at work.
    rack.machine(&args, ",romfile=,bootindex=0", line, Duration::from_secs(600)).unwrap();
    has(&rack.trace().unwrap(), seen).unwrap();
}

/// What iPXE says where it has its address by DHCPv4.
const BY_V4: &str = "The rack boots efi at 10.0.0.4";
/// QEMU's arguments for firmware that does not try TFTP.
const NO_PXE: [&str; 4] = [
    "-fw_cfg",
    "name=opt/org.tianocore/IPv4PXESupport,string=no",
    "-fw_cfg",
    "name=opt/org.tianocore/IPv6PXESupport,string=no",
];

#[test]
fn uefi_boots_by_tftp_and_then_ipxe_by_http() {
    let rules =
        [("efi-x64", "tftp://10.0.0.2/loader.efi"), ("ipxe-efi-x64", "http://10.0.0.2/efi.ipxe"), ("bios", "wrong")];
    let seen = ["(efi-x64)", "loads loader.efi from 10.0.0.2 (efi-x64)", "(efi-x64, iPXE)", "(ipxe-efi-x64)"];
    uefi(|rack| rack.boot(&rules).unwrap(), &[], BY_V4, &seen);
}

#[test]
fn uefi_boots_by_http() {
    let rules =
        [("efi-x64-http", "http://10.0.0.2/loader.efi"), ("ipxe", "http://10.0.0.2/efi.ipxe"), ("efi", "wrong")];
    let seen = ["(efi-x64, HTTP)", "loads http://10.0.0.2/loader.efi (efi-x64-http)", "(ipxe)"];
    uefi(|rack| rack.boot(&rules).unwrap(), &NO_PXE, BY_V4, &seen);
}

#[test]
fn uefi_boots_by_http_over_ipv6() {
    let rules = [("http", "http://[fd00::2]/loader.efi"), ("ipxe", "http://[fd00::2]/efi.ipxe"), ("efi", "wrong")];
    let seen = ["DHCPv6 SOLICIT", "(efi-x64, HTTP)", "loads http://[fd00::2]/loader.efi (http)", "efi.ipxe (ipxe)"];
    uefi(|rack| rack.boot_by_v6(&rules).unwrap(), &NO_PXE, "The rack boots efi at", &seen);
}
