//! What a machine that boots from the network says of itself in DHCP: its architecture, its vendor class, its user classes, and
//! whether it is iPXE already (RFC 4578, RFC 5970, RFC 3004).

use crate::{be16, dhcp, dhcpv6};

/// Names of the architectures, by the numbers of IANA's list "Processor Architecture Types" (RFC 5970 section 3.3). Those that
/// load by HTTP have the name of their kind; [`Client::http`] tells them apart.
const ARCHITECTURES: [(u16, &str, bool); 28] = [
    (0, "bios", false),
    (2, "efi-ia64", false),
    (6, "efi-ia32", false),
    (7, "efi-x64", false),
    // EFI byte code: x86-64 machines said so before they had a number.
    (9, "efi-x64", false),
    (10, "efi-arm32", false),
    (11, "efi-arm64", false),
    (12, "powerpc-ofw", false),
    (13, "powerpc-epapr", false),
    (14, "powerpc-opal", false),
    (15, "efi-ia32", true),
    (16, "efi-x64", true),
    (17, "efi-x64", true),
    (18, "efi-arm32", true),
    (19, "efi-arm64", true),
    (20, "bios", true),
    (21, "uboot-arm32", false),
    (22, "uboot-arm64", false),
    (23, "uboot-arm32", true),
    (24, "uboot-arm64", true),
    (25, "efi-riscv32", false),
    (26, "efi-riscv32", true),
    (27, "efi-riscv64", false),
    (28, "efi-riscv64", true),
    (37, "efi-loongarch32", false),
    (38, "efi-loongarch32", true),
    (39, "efi-loongarch64", false),
    (40, "efi-loongarch64", true),
];

/// The vendor class of firmware that loads by HTTP (UEFI specification section 24.7.2).
pub const HTTP_CLIENT: &str = "HTTPClient";
/// The vendor class of firmware that loads by TFTP (Preboot Execution Environment 2.1 section 2.2.3).
pub const PXE_CLIENT: &str = "PXEClient";

/// A machine that asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// The number of its architecture, the first that it names.
    pub architecture: Option<u16>,
    /// Its vendor class; empty where it says none.
    pub vendor: String,
    /// Its user classes.
    pub user: Vec<String>,
    /// It is iPXE.
    pub ipxe: bool,
}

impl Client {
    /// Who sent a DHCPv4 message with these options.
    pub fn v4(options: &[(u8, &[u8])]) -> Client {
        use dhcp::option::{ARCHITECTURE, IPXE, USER_CLASS, VENDOR_CLASS};
        let find = |code| options.iter().find(|(c, _)| *c == code).map(|(_, v)| *v);
        let class = find(USER_CLASS).unwrap_or_default();
        // iPXE, ISC dhclient and others send their only class bare; RFC 3004 has a length before each.
        let user = counted(class, 1).unwrap_or_else(|| vec![text(class)]);
        Client {
            architecture: find(ARCHITECTURE).and_then(|v| be16(v, 0)),
            vendor: find(VENDOR_CLASS).map(text).unwrap_or_default(),
            ipxe: find(IPXE).is_some() || class == b"iPXE" || user.iter().any(|u| u == "iPXE"),
            user: user.into_iter().filter(|u| !u.is_empty()).collect(),
        }
    }

    /// Who sent a DHCPv6 message with these options.
    pub fn v6(options: &[(u16, &[u8])]) -> Client {
        use dhcpv6::option::{ARCHITECTURE, USER_CLASS, VENDOR_CLASS};
        let find = |code| options.iter().find(|(c, _)| *c == code).map(|(_, v)| *v);
        // RFC 8415 section 21.16: an enterprise number, then classes with their lengths.
        let vendor = find(VENDOR_CLASS).and_then(|v| counted(v.get(4..)?, 2)).unwrap_or_default();
        let user = find(USER_CLASS).and_then(|v| counted(v, 2)).unwrap_or_default();
        Client {
            architecture: find(ARCHITECTURE).and_then(|v| be16(v, 0)),
            vendor: vendor.into_iter().next().unwrap_or_default(),
            ipxe: user.iter().any(|u| u == "iPXE"),
            user,
        }
    }

    /// Whether it loads from URLs of HTTP by itself, without iPXE.
    pub fn http(&self) -> bool {
        let by_number = |n| ARCHITECTURES.iter().any(|(a, _, http)| *a == n && *http);
        self.vendor.starts_with(HTTP_CLIENT) || self.architecture.is_some_and(by_number)
    }

    /// The name of its architecture, as in `efi-x64`; none where it says none, or one without a name.
    pub fn architecture_name(&self) -> Option<&'static str> {
        self.architecture.and_then(|n| ARCHITECTURES.iter().find(|(a, ..)| *a == n)).map(|(_, name, _)| *name)
    }

    /// Whether it says anything of how it boots.
    pub fn boots(&self) -> bool {
        self.ipxe || self.architecture.is_some() || self.http() || self.vendor.starts_with(PXE_CLIENT)
    }
}

/// Whether an architecture has this name.
pub fn is_architecture(name: &str) -> bool {
    ARCHITECTURES.iter().any(|(_, n, _)| *n == name)
}

/// Texts that each have their length in front, in `octets` octets; none where the lengths do not fit.
fn counted(mut bytes: &[u8], octets: usize) -> Option<Vec<String>> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at_checked(octets)?;
        let len = head.iter().fold(0, |n, b| n << 8 | usize::from(*b));
        let (value, after) = rest.split_at_checked(len).filter(|_| len > 0)?;
        out.push(text(value));
        bytes = after;
    }
    Some(out)
}

/// Octets as text, without the zeros with which some firmware ends it.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn firmware_is_told_apart() {
        let uefi = Client::v4(&[(93, &[0, 7]), (60, b"PXEClient:Arch:00007:UNDI:003001")]);
        assert_eq!((uefi.architecture_name(), uefi.http(), uefi.ipxe), (Some("efi-x64"), false, false));
        let http = Client::v4(&[(93, &[0, 16]), (60, b"HTTPClient:Arch:00016:UNDI:003001")]);
        assert_eq!((http.architecture_name(), http.http()), (Some("efi-x64"), true));
        let ipxe = Client::v4(&[(93, &[0, 0]), (77, b"iPXE"), (175, &[1, 1, 1])]);
        assert_eq!(
            (ipxe.architecture_name(), ipxe.ipxe, ipxe.user.as_slice()),
            (Some("bios"), true, &["iPXE".into()][..])
        );
        assert!(!Client::v4(&[(55, &[1, 3])]).boots());
    }

    #[test]
    fn classes_have_lengths_or_none() {
        let two = Client::v4(&[(77, b"\x04rack\x03hpc")]);
        assert_eq!(two.user, ["rack", "hpc"]);
        assert_eq!(Client::v4(&[(77, b"rack")]).user, ["rack"]);
        let six = Client::v6(&[(61, &[0, 16]), (16, b"\0\0\x01\x57\0\x0aHTTPClient"), (15, b"\0\x04iPXE")]);
        assert_eq!((six.vendor.as_str(), six.http(), six.ipxe), ("HTTPClient", true, true));
        for cut in 0..16 {
            let _ = Client::v6(&[(16, &b"\0\0\x01\x57\0\x0aHTTPClient"[..cut])]);
            let _ = Client::v4(&[(77, &b"\x04rack\x03hpc"[..cut.min(9)]), (93, &[0])]);
        }
    }
}
