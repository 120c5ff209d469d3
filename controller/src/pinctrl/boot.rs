//! What a machine is to load, by what it says of itself: the keys `dhcpv4-boot:NAME` and `dhcpv6-boot:NAME` of a port binding's
//! `external_ids` (docs/bare-metal.md). OVN knows one file for iPXE and one for everybody else.
//!
//! | NAME | of which machine |
//! |---|---|
//! | `ipxe-ARCH`, `ipxe` | iPXE on an architecture, on any |
//! | `user:CLASS` | one with that user class |
//! | `vendor:PREFIX` | one whose vendor class begins so; the longest prefix counts |
//! | `arch-NUMBER` | firmware with that number of an architecture |
//! | `ARCH-http`, `http` | firmware that loads by HTTP |
//! | `ARCH`, `efi` | firmware that loads by TFTP |
//! | `option-43`, `option-175` | no file: what these DHCPv4 options hold, as `CODE=VALUE,…` |

use ovn_schema::{Map, Str};
use packet::boot::{Client, is_architecture};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// How keys of DHCPv4 and of DHCPv6 begin.
const V4: &str = "dhcpv4-boot:";
const V6: &str = "dhcpv6-boot:";

/// What a port's machine is to load, as its port binding says it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rules {
    /// By DHCPv4.
    pub v4: Family,
    /// By DHCPv6.
    pub v6: Family,
}

/// The same for one protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Family {
    /// Files and URLs by name.
    files: BTreeMap<Str, Str>,
    /// What option 43 holds.
    pub vendor_options: Vec<u8>,
    /// What option 175 holds.
    pub ipxe_options: Vec<u8>,
}

impl Rules {
    /// The rules in a port binding's `external_ids`, and what is wrong with keys that are none; nothing where there are neither.
    pub fn of(external_ids: &Map<Str, Str>) -> (Option<Rules>, Vec<String>) {
        let (mut rules, mut wrong) = (Rules::default(), Vec::new());
        for (key, value) in external_ids {
            let (family, name, four) = match (key.strip_prefix(V4), key.strip_prefix(V6)) {
                (Some(name), _) => (&mut rules.v4, name, true),
                (_, Some(name)) => (&mut rules.v6, name, false),
                _ => continue,
            };
            match name {
                "option-43" | "option-175" if four => match encapsulated(value) {
                    Some(bytes) if name == "option-43" => family.vendor_options = bytes,
                    Some(bytes) => family.ipxe_options = bytes,
                    None => wrong.push(format!("{key}: \"{value}\" is no list of CODE=VALUE of at most 255 octets")),
                },
                _ if is_name(name) => drop(family.files.insert(name.into(), value.clone())),
                _ => wrong.push(format!("{key}: \"{name}\" names no kind of machine")),
            }
        }
        (Some(rules).filter(|r| *r != Rules::default()), wrong)
    }
}

/// Whether a key may end so.
fn is_name(name: &str) -> bool {
    let architecture = |n: &str| is_architecture(n) || n == "efi";
    let named = |prefix| name.strip_prefix(prefix).is_some_and(|rest: &str| !rest.is_empty());
    matches!(name, "ipxe" | "http" | "efi")
        || named("user:")
        || named("vendor:")
        || name.strip_prefix("arch-").is_some_and(|n| n.parse::<u16>().is_ok())
        || architecture(name.strip_prefix("ipxe-").unwrap_or(name.strip_suffix("-http").unwrap_or(name)))
}

impl Family {
    /// The name of the rule for a machine, and what it is to load; none where no rule is about it.
    pub fn file(&self, client: &Client) -> Option<(&str, &str)> {
        let rule = |name: &str| self.files.get_key_value(name).map(|(n, f)| (&**n, &**f));
        let architecture = client.architecture_name();
        if client.ipxe {
            let own = architecture.and_then(|a| rule(&format!("ipxe-{a}")));
            // What hands over to iPXE is not for iPXE: without a rule of its own it gets what OVN gives to iPXE.
            return own.or_else(|| rule("ipxe"));
        }
        let user = || client.user.iter().find_map(|class| rule(&format!("user:{class}")));
        let vendor = || {
            let prefix =
                |name: &Str| name.strip_prefix("vendor:").filter(|p| client.vendor.starts_with(p)).map(str::len);
            let longest = self.files.iter().filter_map(|(n, f)| Some((prefix(n)?, (&**n, &**f)))).max();
            longest.map(|(_, rule)| rule)
        };
        let firmware = || {
            if client.http() {
                return architecture.and_then(|a| rule(&format!("{a}-http"))).or_else(|| rule("http"));
            }
            let efi = architecture.filter(|a| a.starts_with("efi-")).and_then(|_| rule("efi"));
            architecture.and_then(rule).or(efi)
        };
        let number = || client.architecture.and_then(|n| rule(&format!("arch-{n}")));
        user().or_else(vendor).or_else(number).or_else(firmware)
    }
}

/// Whether a file is a URL that firmware loads by HTTP.
pub fn is_http(file: &str) -> bool {
    file.starts_with("http://") || file.starts_with("https://")
}

/// The server and the path of `tftp://ADDRESS/PATH`: PXE firmware takes no URL over IPv4 but these two apart.
pub fn tftp(file: &str) -> Option<(Ipv4Addr, &str)> {
    let (server, path) = file.strip_prefix("tftp://")?.split_once('/')?;
    Some((server.parse().ok()?, path))
}

/// Options in an option (RFC 2132 section 8.4) from `CODE=VALUE,…`; a value is `0x` with octets, an IPv4 address, or text.
fn encapsulated(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (code, value) = part.split_once('=')?;
        let code: u8 = code.trim().parse().ok().filter(|c| !matches!(c, 0 | 255))?;
        let value = match (value.strip_prefix("0x"), value.parse::<Ipv4Addr>()) {
            (Some(hex), _) => octets(hex)?,
            (None, Ok(address)) => address.octets().to_vec(),
            (None, Err(_)) => value.as_bytes().to_vec(),
        };
        out.extend([code, u8::try_from(value.len()).ok()?]);
        out.extend(value);
    }
    out.push(packet::dhcp::option::END);
    (out.len() <= 255).then_some(out)
}

fn octets(hex: &str) -> Option<Vec<u8>> {
    if hex.is_empty() || !hex.len().is_multiple_of(2) || !hex.is_ascii() {
        return None;
    }
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(keys: &[(&str, &str)]) -> Family {
        let ids = keys.iter().map(|(k, v)| (format!("{V4}{k}").as_str().into(), (*v).into())).collect();
        let (rules, wrong) = Rules::of(&ids);
        assert_eq!(wrong, Vec::<String>::new());
        rules.unwrap_or_default().v4
    }

    fn client(architecture: u16, vendor: &str) -> Client {
        Client { architecture: Some(architecture), vendor: vendor.into(), ..Client::default() }
    }

    #[test]
    fn each_machine_loads_what_is_for_it() {
        let r = rules(&[
            ("bios", "undionly.kpxe"),
            ("efi", "any.efi"),
            ("efi-x64", "snponly.efi"),
            ("efi-x64-http", "http://b/x64.efi"),
            ("http", "http://b/any.efi"),
            ("ipxe", "http://b/menu.ipxe"),
            ("ipxe-efi-arm64", "http://b/arm.ipxe"),
            ("vendor:PXEClient:Arch:00000:UNDI:009", "old.kpxe"),
            ("user:rack7", "rack.efi"),
            ("arch-12", "ppc"),
        ]);
        let file = |c: &Client| r.file(c).map(|(_, f)| f);
        assert_eq!(file(&client(0, "PXEClient:Arch:00000:UNDI:002001")), Some("undionly.kpxe"));
        assert_eq!(file(&client(0, "PXEClient:Arch:00000:UNDI:009001")), Some("old.kpxe"));
        assert_eq!(file(&client(7, "PXEClient")), Some("snponly.efi"));
        assert_eq!(file(&client(9, "PXEClient")), Some("snponly.efi"), "an old number of x86-64");
        assert_eq!(file(&client(11, "PXEClient")), Some("any.efi"));
        assert_eq!(file(&client(16, "HTTPClient")), Some("http://b/x64.efi"));
        assert_eq!(file(&client(7, "HTTPClient")), Some("http://b/x64.efi"), "the vendor class says it as well");
        assert_eq!(file(&client(19, "HTTPClient")), Some("http://b/any.efi"));
        assert_eq!(file(&client(12, "")), Some("ppc"));
        assert_eq!(file(&client(99, "")), None);
        assert_eq!(file(&Client::default()), None);
        let ipxe = |n| Client { ipxe: true, ..client(n, "PXEClient") };
        assert_eq!((file(&ipxe(7)), file(&ipxe(11))), (Some("http://b/menu.ipxe"), Some("http://b/arm.ipxe")));
        let rack = Client { user: vec!["rack7".into()], ..client(7, "PXEClient") };
        assert_eq!(file(&rack), Some("rack.efi"));
        let no_ipxe = rules(&[("bios", "undionly.kpxe")]);
        assert_eq!(no_ipxe.file(&ipxe(0)), None, "iPXE would load itself for ever");
    }

    #[test]
    fn keys_that_are_no_rules_are_named() {
        let ids: Map<Str, Str> = [
            ("dhcpv4-boot:efi-z80", "x"),
            ("dhcpv6-boot:option-43", "1=2"),
            ("dhcpv4-boot:option-43", "x"),
            ("name", "vm"),
        ]
        .into_iter()
        .map(|(k, v)| (k.into(), v.into()))
        .collect();
        let (rules, wrong) = Rules::of(&ids);
        assert_eq!((rules, wrong.len()), (None, 3));
        assert!(wrong.iter().any(|w| w.contains("\"efi-z80\" names no kind of machine")), "{wrong:?}");
    }

    #[test]
    fn options_in_options_have_codes_and_lengths() {
        assert_eq!(
            encapsulated("6=0x08, 8=10.0.0.1,9=menu"),
            Some(b"\x06\x01\x08\x08\x04\x0a\0\0\x01\x09\x04menu\xff".to_vec())
        );
        for wrong in ["x", "0=1", "255=1", "256=1", "6=0x8", "6=0xzz"] {
            assert_eq!(encapsulated(wrong), None, "{wrong}");
        }
        assert_eq!(encapsulated(&format!("6={}", "x".repeat(254))), None);
        assert_eq!(tftp("tftp://10.0.0.1/a/b.efi"), Some((Ipv4Addr::new(10, 0, 0, 1), "a/b.efi")));
        assert_eq!(tftp("tftp://boot.example/a"), None);
    }
}
