//! A sample of `make test-kernel`: representors on Debian's kernel, in an emulated machine.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Guard, able};
use hw_tests::network::programs;
use std::path::Path;
use std::process::Command;

#[test]
fn representors_on_debians_kernel() {
    let _one = Guard::take();
    if !able(&["qemu-system-x86_64", "cpio", "/usr/sbin/modprobe", "ovs-vsctl", "ovn-nbctl"]) {
        return;
    }
    let sources = std::fs::read_dir("/usr/src").unwrap();
    let is_headers = |name: &str| name.starts_with("linux-headers-") && name.ends_with("-amd64");
    if !sources.flatten().any(|e| is_headers(&e.file_name().to_string_lossy())) {
        needs::skip("linux-headers-amd64 not installed (scripts/install test)");
        return;
    }
    let (root, bin) = (Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap(), programs().unwrap());
    let script = &mut Command::new(root.join("scripts/test-kernel"));
    let out = script.env("KERNEL_TESTS", "representors").env("BIN", &bin).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    assert!(said.contains("ok: VF 0 is plugged in"), "{said}");
}
