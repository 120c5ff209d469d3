//! A second gateway takes over in the middle of a machine's boot: after its first lease, while its download waits.

use super::bootable;
use super::common::Guard;
use super::rack::{PATIENCE, Rack, has};
use anyhow::{Result, ensure};
use hw_tests::lab::until;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

/// The second half of the first script asks for a lease again, which is the second gateway's to give, and loads another.
const REST: &str = "ifclose net0\ndhcp net0 || dhcp net0 || echo No lease\nchain http://10.0.0.2/second.ipxe || echo No file\n\
                    echo The end\nsleep 600\n";
const SECOND: &str = "#!ipxe\necho The rack boots ${platform} at ${net0/ip}\nsleep 600\n";

/// A download that gives its first half, and the rest once there is a file `go`.
fn halves(dir: &Path) -> String {
    let d = dir.display();
    format!(
        "#!/bin/sh\nprintf 'Content-Type: text/plain\\r\\n\\r\\n#!ipxe\\necho The first half\\n'\n: > {d}/began\n\
         while [ ! -e {d}/go ]; do sleep 0.1; done\ncat {d}/rest\n"
    )
}

/// Boots a machine whose first gateway goes away in a way.
fn boots(goes: impl Fn(&mut Rack) -> Result<()>) -> Result<()> {
    let mut rack = Rack::with_gateways(&["gw1", "gw2"])?;
    let dir = rack.serve(&[("second.ipxe", SECOND.as_bytes()), ("rest", REST.as_bytes())])?;
    let script = dir.join("cgi-bin/first.ipxe");
    std::fs::create_dir_all(dir.join("cgi-bin"))?;
    std::fs::write(&script, halves(&dir))?;
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755))?;
    // Who runs the script is not root.
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o777))?;
    rack.boot(&[("ipxe", "http://10.0.0.2/cgi-bin/first.ipxe")])?;
    rack.power_on(&["-machine", "pc,graphics=off", "-boot", "n"], "")?;
    let began = until("the download's first half", Duration::from_secs(240), || {
        ensure!(dir.join("began").exists(), "it has not begun: {}", rack.lab.output("tor", "http"));
        Ok(())
    });
    if let Err(e) = began {
        return rack.console("its reason", Duration::ZERO).map_err(|c| e.context(format!("{c:#}")));
    }
    has(&rack.trace_of("gw1")?, &["DISCOVER", "ACK 10.0.0.4", "(bios, iPXE)"])?;
    // It has nothing to show as long as it was not asked.
    ensure!(rack.trace_of("gw2").is_err(), "two gateways are active");
    goes(&mut rack)?;
    std::fs::write(dir.join("go"), "")?;
    rack.console("The rack boots pcbios at 10.0.0.4", Duration::from_secs(120))?;
    until("the second gateway's answers", PATIENCE, || {
        has(&rack.trace_of("gw2")?, &["DISCOVER", "REQUEST", "ACK 10.0.0.4", "(bios, iPXE)"])
    })
}

fn test(goes: impl Fn(&mut Rack) -> Result<()>) {
    let _one = Guard::take();
    if !bootable(&["/usr/lib/ipxe/qemu/pxe-virtio.rom"]) {
        return;
    }
    if let Err(e) = boots(goes) {
        panic!("{e:#}");
    }
}

#[test]
fn another_gateway_takes_over_from_a_killed_one_in_the_middle_of_a_boot() {
    test(|rack| {
        rack.kill("gw1");
        Ok(())
    });
}

#[test]
fn another_gateway_takes_over_from_one_that_is_cut_off_in_the_middle_of_a_boot() {
    test(|rack| rack.cut("gw1"));
}
