//! Internal ports as devices, for tests (`--enable-dummy-vif-plug`).

use super::{Device, Provider, Refusal};
use ovn_schema::{Map, Str};

/// The longest name of a network device (`IFNAMSIZ` less the final 0).
const LONGEST: usize = 15;
const OPTION: &str = "vif-plug-dummy-option";

/// Gives each port an internal port of its own name.
#[derive(Debug)]
pub struct Dummy;

impl Provider for Dummy {
    fn device(&self, port: &str, _: &Map<Str, Str>) -> Result<Device, Refusal> {
        let end = (0..=LONGEST.min(port.len())).rev().find(|n| port.is_char_boundary(*n)).unwrap_or(0);
        let name = port.get(..end).unwrap_or_default();
        let options = Map::from([(OPTION.into(), "value".into())]);
        Ok(Device { name: name.into(), kind: "internal".into(), options })
    }

    fn maintains(&self) -> &'static [&'static str] {
        &[OPTION]
    }
}
