//! The house rule: which room of the crate may import which. From the ground up: `config`, `kernel` and `ports`, `pmd`,
//! `openflow` and `export`, `reconcile`, `commands` and `metrics`, and `main.rs` on top.

use needs::imports::Rule;
use std::path::Path;

const RULE: Rule<'_> = Rule {
    rooms: &[
        ("clock", &[]),
        ("config", &[]),
        ("kernel", &["config"]),
        ("token_bucket", &[]),
        ("ports", &["config", "token_bucket"]),
        ("pmd", &["clock", "config", "ports", "token_bucket"]),
        ("openflow", &["clock", "config", "ports", "pmd"]),
        ("export", &["config", "kernel", "ports", "pmd"]),
        ("ha", &["clock", "config", "pmd"]),
        ("reconcile", &["config", "kernel", "ports", "pmd", "openflow", "export", "ha"]),
        ("commands", &["config", "ports", "pmd", "openflow", "reconcile", "ha"]),
        ("metrics", &["ports", "pmd", "openflow", "export", "ha"]),
    ],
    // Closures over the main PMD thread's state; all others use the named methods of `pmd::Handle`.
    reserved: &[("pmd::Jobs", &["reconcile/", "openflow/requests.rs", "ha/requests.rs"]), ("pmd::handle::Jobs", &[])],
};

#[test]
fn rooms_import_only_those_beneath_them() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let breaches = RULE.breaches(&src).expect("sources");
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}
