//! A sample of `make test-kernel`: representors on Debian's kernel, in an emulated machine. That machine's kernel has to be there:
//! fetching Debian's and making its netdevsim takes longer than all of the sample.

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
    let bin = programs().unwrap();
    if !bin.parent().is_some_and(|target| target.join("kernel-lab/done").exists()) {
        needs::skip("the emulated machine's kernel is not made yet (make test-kernel)");
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let script = &mut Command::new(root.join("scripts/test-kernel"));
    let out = script.env("KERNEL_TESTS", "representors").env("BIN", &bin).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    assert!(said.contains("ok: VF 0 is plugged in"), "{said}");
}
