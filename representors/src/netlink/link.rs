//! Network devices over rtnetlink (rtnetlink(7)).

use super::{Malformed, attributes, request, text, u32_at};
use crate::inventory::Link;
use crate::{DeviceName, Event};
use packet::Mac;

/// A network device is there, or another.
pub const NEW: u16 = 16;
/// It is gone.
pub const DEL: u16 = 17;
const GET: u16 = 18;
/// The multicast group that tells of changes.
pub const GROUP: u32 = 1;
/// Length of `struct ifinfomsg`.
const HEADER: usize = 16;

const ADDRESS: u16 = 1;
const NAME: u16 = 3;
const SWITCH_ID: u16 = 36;
const PORT_NAME: u16 = 38;
const PERMANENT: u16 = 54;
const PARENT: u16 = 56;
const PARENT_BUS: u16 = 57;

/// Asks for all.
pub fn ask(sequence: u32) -> Vec<u8> {
    request(GET, true, sequence, &[0; HEADER])
}

/// What a message tells; nothing where it is of something else.
///
/// # Errors
/// Where it is malformed.
pub fn event(kind: u16, b: &[u8]) -> Result<Option<Event>, Malformed> {
    if !matches!(kind, NEW | DEL) {
        return Ok(None);
    }
    // A message of another family is of a bridge's port.
    if b.first() != Some(&0) {
        return Ok(None);
    }
    let ifindex = u32_at(b, 4).ok_or(Malformed("a network device without number"))?;
    if kind == DEL {
        return Ok(Some(Event::LinkGone(ifindex)));
    }
    let all = attributes(b.get(HEADER..).unwrap_or_default())?;
    let get = |kind: u16| all.iter().find(|(k, _)| *k == kind).map(|(_, v)| *v);
    let mac = |kind: u16| get(kind).and_then(|v| <[u8; 6]>::try_from(v).ok()).map(Mac);
    let parent = get(PARENT_BUS).zip(get(PARENT));
    Ok(Some(Event::Link(Link {
        ifindex,
        name: get(NAME).map(text).ok_or(Malformed("a network device without name"))?,
        address: mac(ADDRESS),
        permanent: mac(PERMANENT),
        port_name: get(PORT_NAME).map(text),
        switch_id: get(SWITCH_ID).map(|id| id.iter().map(|b| format!("{b:02x}")).collect()),
        parent: parent.map(|(bus, name)| DeviceName { bus: text(bus), name: text(name) }),
    })))
}
