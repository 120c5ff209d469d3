//! Processors, memory and arguments with which DPDK starts.

use super::get;
use ovn_schema::{Map, Str};

/// How the name of DPDK's run-time directory of a process begins; the process's number follows.
pub const RUNDIR_PREFIX: &str = "isthmus-";

/// The least memory for packets, in megabytes.
pub const MEMORY: u32 = 256;
/// That of a switch for test beds (`--enable-dummy`), of which several run on a machine.
pub const MEMORY_OF_TEST_BEDS: u32 = 64;

/// The processors for PMD threads, one thread each: those of `other_config:pmd-cpu-mask` that the process may use; none
/// without it.
pub fn pmd_processors(other_config: &Map<Str, Str>, cpus: &[usize]) -> Vec<usize> {
    let mask = get(other_config, "pmd-cpu-mask").map(|m| m.trim_start_matches("0x"));
    // The last digit is that of processors 0 to 3.
    let digit = |m: &str, n: usize| m.chars().rev().nth(n / 4).and_then(|c| c.to_digit(16)).unwrap_or(0);
    mask.map_or(Vec::new(), |m| cpus.iter().copied().filter(|n| digit(m, *n) >> (n % 4) & 1 == 1).collect())
}

/// How many ordinary buffers there are, which take a quarter of DPDK's memory but are no fewer than 16,383, or
/// 4,095 of less than 128 MB; and how many bytes the buffers of each larger size may take, a quarter as well.
pub fn packets(arguments: &[String]) -> (u32, u64) {
    let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|i| arguments.get(i + 1));
    let sum = |v: &String| v.split(',').filter_map(|m| m.trim().parse::<u64>().ok()).sum::<u64>();
    let megabytes = value("-m").or_else(|| value("--socket-mem")).map_or(0, sum);
    let share = (megabytes << 20) / 4;
    // 2,048 bytes, headroom, and DPDK's own.
    let wanted = share / 2432;
    // Pools are best a power of two less one (DPDK, `rte_mempool_create`).
    let least = if (1..128).contains(&megabytes) { 4096 } else { 16_384 };
    ((wanted.clamp(least, 1_048_576) as u32 + 1).next_power_of_two() / 2 - 1, share)
}

/// DPDK's arguments: those of the command line and of `other_config`, completed so that it starts on machines without
/// hugepages, without PCI devices that no port asks for, and beside other instances. Where DPDK is not told how much
/// memory to take, it gets `least` megabytes if there are no hugepages.
pub fn dpdk_arguments(
    extra: &str,
    other_config: &Map<Str, Str>,
    cpus: &[usize],
    hugepages: bool,
    least: u32,
) -> Vec<String> {
    let mut v: Vec<String> = extra.split_whitespace().map(String::from).collect();
    v.extend(get(other_config, "dpdk-extra").unwrap_or_default().split_whitespace().map(String::from));
    let has = |v: &[String], names: &[&str]| {
        v.iter().any(|a| names.iter().any(|n| a == n || a.starts_with(&format!("{n}="))))
    };
    let memory = get(other_config, "dpdk-socket-mem");
    let total = memory.map(|m| m.split(',').filter_map(|x| x.trim().parse::<u32>().ok()).sum::<u32>());
    let mut add = |names: &[&str], args: &[&str]| {
        if !has(&v, names) {
            v.extend(args.iter().map(|a| a.to_string()));
        }
    };
    if hugepages {
        if let Some(m) = memory {
            add(&["--socket-mem", "-m"], &["--socket-mem", m]);
        }
    } else {
        add(&["--no-huge", "--socket-mem"], &["--no-huge"]);
        let megabytes = total.unwrap_or(0).max(least).to_string();
        add(&["-m", "--socket-mem"], &["-m", &megabytes]);
    }
    if !has(&v, &["-a", "--allow", "-b", "--block", "-w", "--no-pci"]) {
        // No PCI device is taken before a port asks for it.
        v.extend(["-a", "0000:00:00.0"].map(String::from));
    }
    let mut add = |names: &[&str], args: &[&str]| {
        if !has(&v, names) {
            v.extend(args.iter().map(|a| a.to_string()));
        }
    };
    add(&["--no-telemetry", "--telemetry"], &["--no-telemetry"]);
    add(&["--no-shconf", "--in-memory"], &["--no-shconf"]);
    add(&["--file-prefix"], &["--file-prefix", &format!("{}{}", RUNDIR_PREFIX, std::process::id())]);
    // The tap driver complains of kernels without the queueing disciplines that its flow rules, unused here, would
    // want.
    add(&["--log-level"], &["--log-level=lib.eal:error", "--log-level=pmd.net.tap:critical"]);
    // One thread of DPDK's, which may run on any of these.
    let list: Vec<String> = cpus.iter().map(usize::to_string).collect();
    if let (false, false) = (list.is_empty(), has(&v, &["-l", "-c", "--lcores"])) {
        v.push(format!("--lcores=0@({})", list.join(",")));
    }
    v
}

/// The longest sleep between two polls: `other_config:pmd-sleep-max` in microseconds, 200 by default, and 10,000 at
/// most, as in Open vSwitch.
pub fn sleep_max(asked: Option<&str>) -> std::time::Duration {
    let micros = asked.and_then(|t| t.parse::<u64>().ok()).unwrap_or(200);
    std::time::Duration::from_micros(micros.min(10_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Map<Str, Str> {
        pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
    }

    #[test]
    fn sleeps_have_a_limit() {
        let of = |asked| sleep_max(asked).as_micros();
        assert_eq!([None, Some("0"), Some("50"), Some("10000"), Some("9999999")].map(of), [200, 0, 50, 10_000, 10_000]);
        assert_eq!(of(Some("long")), 200);
    }

    #[test]
    fn the_mask_chooses_among_the_processors_that_there_are() {
        let of = |mask: &str| pmd_processors(&map(&[("pmd-cpu-mask", mask)]), &[0, 1, 5]);
        assert_eq!((of("0x2"), of("21"), of("0x20")), (vec![1], vec![0, 5], vec![5]));
        assert_eq!((of("0"), of("zz"), of("0x4")), (vec![], vec![], vec![]));
    }

    #[test]
    fn packets_take_a_quarter_of_the_memory() {
        let of = |a: &str| packets(&a.split(' ').map(String::from).collect::<Vec<_>>()).0;
        assert_eq!((of("--no-huge -m 256"), of("-m 2048"), of("--socket-mem 512,512")), (16_383, 131_071, 65_535));
        assert_eq!((of("-m 64"), of("-m 127")), (4095, 8191));
        assert_eq!((of(""), of("-m 4096"), of("-m 99999")), (16_383, 262_143, 1_048_575));
    }

    #[test]
    fn dpdk_arguments_are_completed_but_not_overridden() {
        let v = dpdk_arguments("", &map(&[]), &[0, 1], false, MEMORY).join(" ");
        assert!(v.contains("--no-huge -m 256 -a 0000:00:00.0") && v.contains("--lcores=0@(0,1)"), "{v}");
        let v =
            dpdk_arguments("-m 512 -a 0000:03:00.0", &map(&[("dpdk-extra", "-l 1")]), &[0], false, MEMORY).join(" ");
        assert!(
            v.starts_with("-m 512 -a 0000:03:00.0 -l 1") && !v.contains("lcores") && !v.contains(" 0000:00:00.0"),
            "{v}"
        );
        let v = dpdk_arguments("", &map(&[("dpdk-socket-mem", "1024,0")]), &[], true, MEMORY).join(" ");
        assert!(v.contains("--socket-mem 1024,0") && !v.contains("no-huge"), "{v}");
    }
}
