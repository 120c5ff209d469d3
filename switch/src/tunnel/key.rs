//! Keys of tunnels.

use super::TunnelKind;
use packet::{Vni, gre};

/// The key of a tunnel's packets, which tells virtual networks with the same endpoints apart. In Geneve and VXLAN it is
/// the VNI (24 bits), in ERSPAN the session (10 bits), in GRE the key and in GTP-U the tunnel endpoint identifier (32
/// bits each). Packets of SRv6 have none, and count as 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct TunnelKey(pub u32);

packet::decimal!(TunnelKey);

impl TunnelKey {
    /// The key of packets that carry none.
    pub const NONE: TunnelKey = TunnelKey(0);

    /// The highest key that the headers of a kind of tunnel have room for. SRv6 takes any number and ignores it.
    pub const fn max(kind: TunnelKind) -> TunnelKey {
        match kind {
            TunnelKind::Gre | TunnelKind::Srv6 | TunnelKind::Gtpu => TunnelKey(u32::MAX),
            TunnelKind::Erspan => TunnelKey(gre::SESSION),
            TunnelKind::Geneve | TunnelKind::Vxlan => TunnelKey(Vni::MAX.get()),
        }
    }

    /// Parses a key, in decimal or with `0x`. `None` if it is no number, or too high for this kind of tunnel.
    pub fn parse(kind: TunnelKind, text: &str) -> Option<TunnelKey> {
        let n = match text.strip_prefix("0x") {
            Some(hex) => u32::from_str_radix(hex, 16),
            None => text.parse(),
        };
        n.ok().map(TunnelKey).filter(|k| *k <= TunnelKey::max(kind))
    }

    /// The low 24 bits, for a header of Geneve or VXLAN.
    pub(super) const fn vni(self) -> Vni {
        Vni::of_low_bits(self.0)
    }
}

impl From<Vni> for TunnelKey {
    #[inline]
    fn from(vni: Vni) -> TunnelKey {
        TunnelKey(vni.get())
    }
}

impl From<TunnelKey> for u128 {
    #[inline]
    fn from(key: TunnelKey) -> u128 {
        key.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_fit_their_kind() {
        for (kind, longest, too_long) in [
            (TunnelKind::Geneve, "16777215", "0x1000000"),
            (TunnelKind::Vxlan, "0xffffff", "16777216"),
            (TunnelKind::Erspan, "1023", "0x400"),
            (TunnelKind::Gre, "0xffffffff", "4294967296"),
            (TunnelKind::Gtpu, "4294967295", "0x100000000"),
        ] {
            assert_eq!(TunnelKey::parse(kind, longest), Some(TunnelKey::max(kind)), "{kind:?}");
            for bad in [too_long, "", "-1", "flow", "0x"] {
                assert_eq!(TunnelKey::parse(kind, bad), None, "{kind:?} {bad}");
            }
        }
        assert_eq!(TunnelKey(0x700_0007).vni(), Vni::of_low_bits(7));
    }
}
