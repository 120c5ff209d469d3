//! Numbers of bridges and devices, and where packets leave.

/// A bridge's number in its switch: from 0, in the order in which bridges were added.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct BridgeId(pub usize);

packet::decimal!(BridgeId);

impl BridgeId {
    /// No bridge has this number.
    pub const NONE: BridgeId = BridgeId(usize::MAX);

    /// Its place in a list of a switch's bridges.
    #[inline]
    pub const fn index(self) -> usize {
        self.0
    }
}

/// Number of devices whose queues can be named.
const DEVICES: u32 = 1 << 16;

/// A device's number, of the caller's numbering.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct DeviceId(pub u32);

packet::decimal!(DeviceId);

impl DeviceId {
    /// No device has this number.
    pub const NONE: DeviceId = DeviceId(u32::MAX);

    /// The device with this place in a list by device.
    #[inline(always)]
    pub const fn at(place: usize) -> DeviceId {
        DeviceId(place as u32)
    }

    /// Its place in a list by device.
    #[inline(always)]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The device, and this queue of it; `None` is the default one.
    pub(crate) fn queue(self, queue: Option<u16>) -> Target {
        let number = queue.filter(|q| *q < u16::MAX && self.0 < DEVICES);
        Target(number.map_or(self.0, |q| (u32::from(q) + 1) << 16 | self.0))
    }
}

/// Where a packet leaves: a device, and the queue of it. Cached flows hold it as a number: of the default queue it is
/// the device's own, and any other queue is in the upper 16 bits, plus 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Target(u32);

packet::decimal!(Target);

impl Target {
    /// Of the number that a cached flow holds.
    #[inline(always)]
    pub(crate) const fn of_bits(bits: u32) -> Target {
        Target(bits)
    }

    /// The number that a cached flow holds.
    #[inline(always)]
    pub(crate) const fn bits(self) -> u32 {
        self.0
    }

    /// The device.
    #[inline(always)]
    pub const fn device(self) -> DeviceId {
        DeviceId(if self.0 < DEVICES { self.0 } else { self.0 % DEVICES })
    }

    /// The device's queue; 0 is the default one.
    #[inline(always)]
    pub const fn queue(self) -> u32 {
        if self.0 < DEVICES { 0 } else { self.0 / DEVICES - 1 }
    }
}

/// The default queue of a device.
impl From<DeviceId> for Target {
    #[inline(always)]
    fn from(device: DeviceId) -> Target {
        Target(device.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_say_device_and_queue() {
        for device in [0, 1, 50, 0xffff].map(DeviceId) {
            assert_eq!(device.queue(None), device.into());
            for (queue, is) in [(None, 0), (Some(0), 0), (Some(1), 1), (Some(0xfffe), 0xfffe), (Some(u16::MAX), 0)] {
                let target = device.queue(queue);
                assert_eq!((target.device(), target.queue()), (device, is), "{queue:?}");
                assert_eq!(Target::of_bits(target.bits()), target);
            }
        }
        assert_eq!(DeviceId(7).queue(Some(3)).bits(), 0x4_0007);
    }
}
