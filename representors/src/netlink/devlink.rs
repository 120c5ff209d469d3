//! devlink over generic netlink (the kernel's `linux/devlink.h`): devices, their embedded switches, their ports.

use super::{Malformed, attributes, put, request, text, u16_at, u32_at};
use crate::inventory::{Device, Mode, Port};
use crate::{DeviceName, Event, Function};
use packet::Mac;

/// The type of messages of generic netlink's controller.
const CONTROLLER: u16 = 0x10;
const GET_FAMILY: u8 = 3;
/// Length of generic netlink's header.
const HEADER: usize = 4;

const GET: u8 = 1;
const NEW: u8 = 3;
const DEL: u8 = 4;
const PORT_GET: u8 = 5;
const PORT_NEW: u8 = 7;
const PORT_DEL: u8 = 8;
const ESWITCH_GET: u8 = 29;

const BUS: u16 = 1;
const NAME: u16 = 2;
const INDEX: u16 = 3;
const IFINDEX: u16 = 6;
const ESWITCH_MODE: u16 = 25;
const FLAVOUR: u16 = 77;
const NUMBER: u16 = 78;
const PF_NUMBER: u16 = 127;
const VF_NUMBER: u16 = 128;
const FUNCTION: u16 = 145;
const CONTROLLER_NUMBER: u16 = 150;
const SF_NUMBER: u16 = 164;
/// Within [`FUNCTION`].
const HW_ADDR: u16 = 1;

/// devlink's number, and that of its multicast group `config`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// The type of its messages.
    pub id: u16,
    /// The group that tells of changes.
    pub config: u32,
}

fn body(command: u8, attributes: &[u8]) -> Vec<u8> {
    let mut out = vec![command, 1, 0, 0];
    out.extend(attributes);
    out
}

/// Asks for devlink's number.
pub fn ask_family(sequence: u32) -> Vec<u8> {
    let mut a = Vec::new();
    put(&mut a, 2, b"devlink\0");
    request(CONTROLLER, false, sequence, &body(GET_FAMILY, &a))
}

/// The answer to [`ask_family`].
///
/// # Errors
/// Where it is none.
pub fn family(b: &[u8]) -> Result<Family, Malformed> {
    let (mut id, mut config) = (None, None);
    for (kind, value) in attributes(b.get(HEADER..).unwrap_or_default())? {
        match kind {
            1 => id = u16_at(value, 0),
            7 => {
                for (_, group) in attributes(value)? {
                    let of = attributes(group)?;
                    let is = of.iter().any(|(k, v)| *k == 1 && text(v) == "config");
                    config = config.or(of.iter().find(|(k, _)| *k == 2 && is).and_then(|(_, v)| u32_at(v, 0)));
                }
            }
            _ => {}
        }
    }
    let (Some(id), Some(config)) = (id, config) else { return Err(Malformed("no devlink, or no group config")) };
    Ok(Family { id, config })
}

/// Asks for all devices.
pub fn ask_devices(f: Family, sequence: u32) -> Vec<u8> {
    request(f.id, true, sequence, &body(GET, &[]))
}

/// Asks for all ports.
pub fn ask_ports(f: Family, sequence: u32) -> Vec<u8> {
    request(f.id, true, sequence, &body(PORT_GET, &[]))
}

/// Asks how a device's embedded switch is set.
pub fn ask_mode(f: Family, sequence: u32, d: &DeviceName) -> Vec<u8> {
    let mut a = Vec::new();
    put(&mut a, BUS, format!("{}\0", d.bus).as_bytes());
    put(&mut a, NAME, format!("{}\0", d.name).as_bytes());
    request(f.id, false, sequence, &body(ESWITCH_GET, &a))
}

/// What a message tells; nothing where it is of something else.
///
/// # Errors
/// Where it is malformed.
pub fn event(b: &[u8]) -> Result<Option<Event>, Malformed> {
    let Some(command) = b.first() else { return Err(Malformed("an empty message")) };
    let all = attributes(b.get(HEADER..).unwrap_or_default())?;
    let get = |kind: u16| all.iter().find(|(k, _)| *k == kind).map(|(_, v)| *v);
    let number = |kind: u16| get(kind).and_then(|v| u32_at(v, 0));
    let short = |kind: u16| get(kind).and_then(|v| u16_at(v, 0)).map(u32::from);
    let (Some(bus), Some(name)) = (get(BUS), get(NAME)) else { return Ok(None) };
    let device = DeviceName { bus: text(bus), name: text(name) };
    Ok(match *command {
        NEW => Some(Event::Device(Device { name: device, mode: None })),
        DEL => Some(Event::DeviceGone(device)),
        ESWITCH_GET => {
            let mode = match short(ESWITCH_MODE) {
                Some(0) => Some(Mode::Legacy),
                Some(1) => Some(Mode::Switchdev),
                _ => None,
            };
            Some(Event::Device(Device { name: device, mode }))
        }
        PORT_NEW => {
            let Some(index) = number(INDEX) else { return Err(Malformed("a port without number")) };
            let controller = number(CONTROLLER_NUMBER).unwrap_or(0);
            let pf = short(PF_NUMBER).unwrap_or(0);
            let function = match short(FLAVOUR) {
                Some(0) => Function::Physical { port: number(NUMBER).unwrap_or(0) },
                Some(3) => Function::Pf { controller, pf },
                Some(4) => Function::Vf { controller, pf, vf: short(VF_NUMBER).unwrap_or(0) },
                Some(7) => Function::Sf { controller, pf, sf: number(SF_NUMBER).unwrap_or(0) },
                // Of the card's own processor, a switch chip's, a virtual device's: nobody's to plug in.
                _ => return Ok(None),
            };
            let own = get(FUNCTION).map(attributes).transpose()?.unwrap_or_default();
            let address = own.iter().find(|(k, _)| *k == HW_ADDR).and_then(|(_, v)| <[u8; 6]>::try_from(*v).ok());
            // A function whose address nobody set says 0.
            let address = address.filter(|a| *a != [0; 6]).map(Mac);
            let ifindex = number(IFINDEX).filter(|n| *n != 0);
            Some(Event::Port(Port { device, index, function, ifindex, address }))
        }
        PORT_DEL => number(INDEX).map(|index| Event::PortGone(device, index)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Attributes<'a> = &'a [(u16, &'a [u8])];

    fn port(attributes: Attributes<'_>) -> Vec<u8> {
        let mut a = Vec::new();
        put(&mut a, BUS, b"pci\0");
        put(&mut a, NAME, b"0000:03:00.0\0");
        attributes.iter().for_each(|(k, v)| put(&mut a, *k, v));
        body(PORT_NEW, &a)
    }

    fn device() -> DeviceName {
        DeviceName { bus: "pci".into(), name: "0000:03:00.0".into() }
    }

    #[test]
    fn ports_of_all_kinds() {
        let mut own = Vec::new();
        put(&mut own, HW_ADDR, &[0, 0x53, 0, 0, 0, 1]);
        let n = |n: u32| n.to_ne_bytes();
        let s = |n: u16| n.to_ne_bytes();
        let cases: [(Attributes<'_>, Function); 4] = [
            (&[(FLAVOUR, &s(0)), (NUMBER, &n(1))], Function::Physical { port: 1 }),
            (
                &[(FLAVOUR, &s(3)), (PF_NUMBER, &s(1)), (CONTROLLER_NUMBER, &n(1))],
                Function::Pf { controller: 1, pf: 1 },
            ),
            (&[(FLAVOUR, &s(4)), (PF_NUMBER, &s(0)), (VF_NUMBER, &s(7))], Function::Vf { controller: 0, pf: 0, vf: 7 }),
            (
                &[(FLAVOUR, &s(7)), (PF_NUMBER, &s(0)), (SF_NUMBER, &n(88))],
                Function::Sf { controller: 0, pf: 0, sf: 88 },
            ),
        ];
        for (attributes, function) in cases {
            let (index, ifindex) = (n(9), n(12));
            let more = [attributes, &[(INDEX, &index[..]), (IFINDEX, &ifindex), (FUNCTION, &own)]].concat();
            let want = Port {
                device: device(),
                index: 9,
                function,
                ifindex: Some(12),
                address: Some(Mac([0, 0x53, 0, 0, 0, 1])),
            };
            assert_eq!(event(&port(&more)), Ok(Some(Event::Port(want))));
        }
        assert_eq!(event(&port(&[(INDEX, &n(1)), (FLAVOUR, &s(5))])), Ok(None), "virtual");
        assert!(event(&port(&[(FLAVOUR, &s(0))])).is_err(), "without number");
    }

    #[test]
    fn the_family_and_its_group() {
        let mut group = Vec::new();
        put(&mut group, 1, b"config\0");
        put(&mut group, 2, &9u32.to_ne_bytes());
        let (mut groups, mut a) = (Vec::new(), Vec::new());
        put(&mut groups, 1, &group);
        put(&mut a, 1, &21u16.to_ne_bytes());
        put(&mut a, 7, &groups);
        assert_eq!(family(&body(1, &a)), Ok(Family { id: 21, config: 9 }));
        assert!(family(&body(1, &[])).is_err());
    }
}
