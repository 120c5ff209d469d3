//! Every recorded flow, group and meter line parses and prints back as it was.

use openflow_rs::text::{flow_to_string, group_to_string, meter_to_string, parse_flow, parse_group, parse_meter};

#[test]
fn flows_print_back() {
    let Some(cases) = golden::files(&[".flows"]) else { return };
    let (mut n, mut bad) = (0, 0);
    let mut seen = std::collections::HashSet::new();
    for (name, text) in &cases {
        for line in text.lines().filter(|l| l.contains("actions=")) {
            if !seen.insert(line.to_string()) {
                continue;
            }
            n += 1;
            let back = match parse_flow(line) {
                Ok(f) => flow_to_string(&f),
                Err(e) => format!("error: {e}"),
            };
            if back != line {
                bad += 1;
                if bad < 10 {
                    eprintln!("{name}:\n {line}\n {back}");
                }
            }
        }
    }
    assert!(n > 1000, "only {n} lines");
    assert_eq!(bad, 0, "of {n}");
}

#[test]
fn groups_print_back() {
    let Some(cases) = golden::files(&[".groups"]) else { return };
    let mut n = 0;
    for (name, text) in &cases {
        for line in text.lines().filter(|l| l.starts_with(" group_id=")) {
            let g = parse_group(line).unwrap_or_else(|e| panic!("{name}: {line}: {e}"));
            assert_eq!(group_to_string(&g), line, "{name}");
            n += 1;
        }
    }
    assert!(n > 10);
}

#[test]
fn meters_print_back() {
    let Some(cases) = golden::files(&[".meters"]) else { return };
    let mut n = 0;
    for (name, text) in &cases {
        let body = text.split_once('\n').map_or("", |x| x.1);
        for block in body.split("\n\n").map(str::trim).filter(|b| b.starts_with("meter=")) {
            let m = parse_meter(block).unwrap_or_else(|e| panic!("{name}: {block}: {e}"));
            assert_eq!(meter_to_string(&m), block, "{name}");
            n += 1;
        }
    }
    assert!(n > 0);
}
