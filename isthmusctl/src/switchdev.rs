//! `isthmusctl nic switchdev`: puts a card into switchdev mode, with virtual functions, in the order that works: drivers' claim on VFs
//! off, no VFs, the mode, VFs.

use anyhow::{Context, Result, bail, ensure};
use representors::inventory::{Inventory, Mode};
use representors::{DeviceName, Function};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One act, as it is shown and done.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// A number is written into a file of the kernel's.
    Write(PathBuf, u32),
    /// `devlink dev eswitch set`.
    Mode(DeviceName),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Write(file, n) => write!(f, "echo {n} > {}", file.display()),
            Step::Mode(d) => write!(f, "devlink dev eswitch set {d} mode switchdev"),
        }
    }
}

/// What the kernel says of a card's VFs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Vfs {
    now: u32,
    /// The most that there can be, where the driver says it.
    most: Option<u32>,
    /// Whether drivers take VFs by themselves, where that can be turned off.
    autoprobe: Option<bool>,
}

fn folder(d: &DeviceName) -> PathBuf {
    Path::new("/sys/bus").join(&d.bus).join("devices").join(&d.name)
}

fn number(file: &Path) -> Option<u32> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

impl Vfs {
    fn read(d: &DeviceName) -> Option<Vfs> {
        let file = |name| number(&folder(d).join(name));
        let autoprobe = file("sriov_drivers_autoprobe").map(|n| n != 0);
        Some(Vfs { now: file("sriov_numvfs")?, most: file("sriov_totalvfs"), autoprobe })
    }
}

/// The steps from how a card is to how it is to be; none where it is so.
fn plan(d: &DeviceName, mode: Option<Mode>, vfs: Option<Vfs>, wanted: Option<u32>) -> Result<Vec<Step>> {
    let Some(mode) = mode else {
        bail!(
            "{d} has no embedded switch that its driver would show: see the card's firmware settings and its driver's version"
        );
    };
    let write = |name: &str, n| Step::Write(folder(d).join(name), n);
    let switched = mode == Mode::Switchdev;
    let Some(vfs) = vfs else {
        ensure!(
            wanted.is_none_or(|n| n == 0),
            "{d} cannot have VFs: turn SR-IOV on in the machine's and in the card's firmware"
        );
        return Ok(if switched { Vec::new() } else { vec![Step::Mode(d.clone())] });
    };
    let wanted = wanted.unwrap_or(vfs.now);
    if let Some(most) = vfs.most.filter(|most| wanted > *most) {
        bail!("{d} can have {most} VFs, not {wanted}: ask for fewer, or raise their number in the card's firmware");
    }
    if switched && wanted == vfs.now {
        return Ok(Vec::new());
    }
    let mut out = Vec::new();
    if vfs.autoprobe == Some(true) && wanted > 0 {
        out.push(write("sriov_drivers_autoprobe", 0));
    }
    // The kernel changes their number only from 0, and drivers the mode only without VFs.
    if vfs.now > 0 {
        out.push(write("sriov_numvfs", 0));
    }
    if !switched {
        out.push(Step::Mode(d.clone()));
    }
    if wanted > 0 {
        out.push(write("sriov_numvfs", wanted));
    }
    Ok(out)
}

/// What the steps take away; `serves` says what a network device is used for.
fn breaks(
    inventory: &Inventory,
    d: &DeviceName,
    steps: &[Step],
    serves: impl Fn(&str) -> Option<String>,
) -> Vec<String> {
    let of = || inventory.representors().filter(|r| r.device == d);
    let mut out = Vec::new();
    if steps.iter().any(|s| matches!(s, Step::Mode(_))) {
        let wires = of().filter(|r| matches!(r.function, Function::Physical { .. })).filter_map(|r| r.link);
        out.extend(
            wires.map(|l| format!("{}: its link goes for a moment, and what is offloaded or bonded there", l.name)),
        );
    }
    let all_vfs = steps.iter().any(|s| matches!(s, Step::Write(f, 0) if f.ends_with("sriov_numvfs")));
    if all_vfs {
        out.push("all VFs go: machines that have one lose their network device".into());
        for r in of().filter(|r| matches!(r.function, Function::Vf { .. })) {
            let Some(l) = r.link else { continue };
            let used = serves(&l.name).map(|u| format!(": {u}")).unwrap_or_default();
            out.push(format!("{} ({}) goes{used}", l.name, r.function));
        }
    }
    if steps.iter().any(|s| matches!(s, Step::Write(f, _) if f.ends_with("sriov_drivers_autoprobe"))) {
        out.push("no driver of this machine takes VFs by itself from now on".into());
    }
    out
}

/// The card that people call so.
fn card(inventory: &Inventory, name: &str) -> Result<(DeviceName, Option<Mode>)> {
    let called = |d: &DeviceName| d.to_string() == name || d.name == name || d.name == format!("0000:{name}");
    if let Some((d, mode)) = inventory.devices().find(|(d, _)| called(d)) {
        return Ok((d.clone(), mode));
    }
    let all: Vec<String> = inventory.devices().map(|(d, _)| d.to_string()).collect();
    let known = if all.is_empty() { "no card at all".to_string() } else { all.join(", ") };
    bail!(
        "{name} is no card whose driver is known to devlink, which knows {known}; a card has to have its own driver, not vfio-pci"
    )
}

fn act(step: &Step) -> Result<()> {
    match step {
        Step::Write(file, n) => std::fs::write(file, n.to_string()).map_err(|e| {
            let mend = match e.kind() {
                std::io::ErrorKind::PermissionDenied => "; run it as root",
                _ if file.ends_with("sriov_numvfs") => {
                    "; VFs may be in use by machines: stop these first. The kernel's log says more (dmesg)"
                }
                _ => "",
            };
            anyhow::anyhow!("{step}: {e}{mend}")
        }),
        Step::Mode(d) => {
            let arguments = ["dev", "eswitch", "set", &d.to_string(), "mode", "switchdev"];
            let done = Command::new("devlink").args(arguments).output();
            let done = done.with_context(|| format!("{step}: devlink cannot be run: install iproute2"))?;
            let told = String::from_utf8_lossy(&done.stderr).trim().to_string();
            ensure!(done.status.success(), "{step}: {told}; the kernel's log says more (dmesg)");
            Ok(())
        }
    }
}

/// Shows what would be done, and does it if `yes`.
pub fn run(
    inventory: &Inventory,
    name: &str,
    vfs: Option<u32>,
    yes: bool,
    serves: impl Fn(&str) -> Option<String>,
) -> Result<()> {
    let (device, mode) = card(inventory, name)?;
    let steps = plan(&device, mode, Vfs::read(&device), vfs)?;
    if steps.is_empty() {
        println!(
            "{device} is in switchdev mode{}: nothing to do",
            vfs.map(|n| format!(" with {n} VFs")).unwrap_or_default()
        );
        return Ok(());
    }
    steps.iter().for_each(|s| println!("{s}"));
    let taken = breaks(inventory, &device, &steps, serves);
    if !yes {
        taken.iter().for_each(|t| println!("# {t}"));
        println!("# nothing was done: add --yes to do it");
        return Ok(());
    }
    for (n, step) in steps.iter().enumerate() {
        if let Err(e) = act(step) {
            let rest: Vec<String> = steps[n..].iter().map(Step::to_string).collect();
            bail!("{e:#}\nnot done: {}", rest.join("; "));
        }
    }
    println!("done");
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn device() -> DeviceName {
        DeviceName { bus: "pci".into(), name: "0000:03:00.0".into() }
    }

    fn steps(mode: Mode, now: u32, wanted: Option<u32>) -> Vec<String> {
        let vfs = Vfs { now, most: Some(8), autoprobe: Some(true) };
        let all = plan(&device(), Some(mode), Some(vfs), wanted).unwrap();
        all.iter().map(|s| s.to_string().replace("/sys/bus/pci/devices/0000:03:00.0/", "")).collect()
    }

    #[test]
    fn the_order_that_works() {
        let mode = "devlink dev eswitch set pci/0000:03:00.0 mode switchdev";
        let (off, none) = ("echo 0 > sriov_drivers_autoprobe", "echo 0 > sriov_numvfs");
        assert_eq!(steps(Mode::Legacy, 2, Some(4)), [off, none, mode, "echo 4 > sriov_numvfs"]);
        assert_eq!(steps(Mode::Legacy, 2, None), [off, none, mode, "echo 2 > sriov_numvfs"]);
        assert_eq!(steps(Mode::Legacy, 0, None), [mode]);
        assert_eq!(steps(Mode::Switchdev, 4, Some(0)), [none]);
        assert_eq!(steps(Mode::Switchdev, 4, Some(4)), [""; 0]);
        assert_eq!(steps(Mode::Switchdev, 4, None), [""; 0]);
    }

    #[test]
    fn what_cannot_be_says_what_mends_it() {
        let vfs = Vfs { now: 0, most: Some(8), autoprobe: None };
        let error = |mode, vfs, wanted| plan(&device(), mode, vfs, wanted).unwrap_err().to_string();
        assert!(error(Some(Mode::Legacy), Some(vfs), Some(9)).contains("can have 8 VFs, not 9"));
        assert!(error(Some(Mode::Legacy), None, Some(1)).contains("turn SR-IOV on"));
        assert!(error(None, Some(vfs), None).contains("no embedded switch"));
        assert!(card(&Inventory::default(), "03:00.0").unwrap_err().to_string().contains("no card at all"));
    }
}
