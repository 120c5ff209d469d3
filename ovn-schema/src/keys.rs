//! Tunnel keys: the numbers by which rows, tunnels and registers name datapaths and ports (ovn-architecture(7), "Tunnel
//! Encapsulations"). A number becomes a key where a row or a register is read, and a number again where one is written.
//! 0, the default, is nobody's key.

use crate::sb;
use std::fmt;

/// A datapath's tunnel key (`Datapath_Binding:tunnel_key`).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DatapathKey(pub i64);

/// A port's tunnel key in its datapath (`Port_Binding:tunnel_key`), or a multicast group's there
/// (`Multicast_Group:tunnel_key`): they share one space.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortKey(pub i64);

/// In decimal, and as the number that a match or an action takes, or a register of this width.
macro_rules! number {
    ($key:ident, $($register:ident),*) => {
        impl fmt::Display for $key {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $key {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        $(impl From<$key> for $register {
            fn from(key: $key) -> $register {
                key.0 as $register
            }
        })*
    };
}

number!(DatapathKey, u64, u128);
number!(PortKey, u32, u64, u128);

impl DatapathKey {
    /// The key that a packet's metadata holds.
    pub fn from_metadata(value: u64) -> DatapathKey {
        DatapathKey(value as i64)
    }
}

impl PortKey {
    /// The key that a packet's register for its input or output port holds.
    pub fn from_register(value: u32) -> PortKey {
        PortKey(value.into())
    }
}

impl sb::DatapathBinding {
    /// Its tunnel key.
    pub fn key(&self) -> DatapathKey {
        DatapathKey(self.tunnel_key)
    }
}

impl sb::PortBinding {
    /// Its tunnel key.
    pub fn key(&self) -> PortKey {
        PortKey(self.tunnel_key)
    }
}

impl sb::MulticastGroup {
    /// Its tunnel key.
    pub fn key(&self) -> PortKey {
        PortKey(self.tunnel_key)
    }
}

impl sb::Fdb {
    /// The key of the datapath in which the address was seen.
    pub fn datapath(&self) -> DatapathKey {
        DatapathKey(self.dp_key)
    }

    /// The key of the port behind which it was seen.
    pub fn port(&self) -> PortKey {
        PortKey(self.port_key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_number_in_rows_registers_and_text() {
        let datapath = sb::DatapathBinding { tunnel_key: 0xff_ffff, ..Default::default() }.key();
        assert_eq!(DatapathKey::from_metadata(datapath.into()), datapath);
        assert_eq!((u128::from(datapath), datapath.to_string()), (0xff_ffff, "16777215".into()));
        let group = sb::MulticastGroup { tunnel_key: 0x8000, ..Default::default() }.key();
        assert_eq!(PortKey::from_register(group.into()), group);
        assert_eq!((u64::from(group), u128::from(group), format!("{group:?}")), (0x8000, 0x8000, "32768".into()));
        assert!(sb::PortBinding { tunnel_key: 0x7fff, ..Default::default() }.key() < group, "they share one space");
        let seen = sb::Fdb { dp_key: 7, port_key: 2, ..Default::default() };
        assert_eq!((seen.datapath(), seen.port()), (DatapathKey(7), PortKey(2)));
    }
}
