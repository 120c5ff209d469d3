//! `encap` and `decap` (ovs-actions(7), ONF EXT-382), and packets without an Ethernet header.
//!
//! A packet's bytes always begin with an Ethernet header. Where the packet has none (`packet_type` in its key), that
//! header is a stand-in: its addresses are zero, its EtherType says what follows, and it is taken away where the packet
//! leaves. So all that looks at headers finds them in the same place. Walks with these actions are not cached.

use crate::buf::PacketBuf;
use crate::drops::DropReason;
use crate::extract::{self, CONTEXT, LABELS, STAND_IN as ETHERNET, label_count, stand_in, write_front};
use crate::xlate::mpls::first_entry;
use crate::xlate::{Kind, Observer, Xlate};
use openflow_rs::action::{ControllerAction, ETH_NSH, Encap, NshProperty, PacketInReason, PacketType, is_mpls};
use openflow_rs::{FieldId as F, FlowKey};
use packet::nsh::{self, Nsh, next};

/// A packet's first time to live in a service path, and its first index, as in Open vSwitch.
const NSH_TTL: u8 = 63;
const NSH_INDEX: u8 = 255;

/// What a key says that the packet begins with.
pub(crate) fn packet_type(key: &FlowKey) -> PacketType {
    PacketType(key.get(F::PacketType) as u32)
}

impl<P: PacketBuf, O: Observer> Xlate<'_, P, O> {
    /// Bytes of the packet as it would leave.
    #[inline]
    pub(crate) fn wire_len(&self) -> usize {
        let n = self.packet.buf.data().len();
        if packet_type(&self.packet.key) == PacketType::ETHERNET { n } else { n.saturating_sub(ETHERNET) }
    }

    /// Bytes that flows count of the packet.
    #[inline]
    pub(crate) fn flow_len(&self) -> usize {
        self.wire_len().saturating_sub(self.packet.uncounted)
    }

    /// Whether the packet has an Ethernet header, as ports want; false has been told.
    pub(super) fn has_ethernet(&mut self) -> bool {
        if packet_type(&self.packet.key) == PacketType::ETHERNET {
            return true;
        }
        self.observer.tell(Kind::Warning, || {
            "Trying to send non-Ethernet packet through legacy L2 port. Dropping packet.".into()
        });
        self.because(DropReason::NotEthernet);
        false
    }

    /// The packet cannot be put into a header, or taken out of one: nothing of it leaves.
    fn unsupported(&mut self, why: impl FnOnce(PacketType) -> String) -> bool {
        let kind = packet_type(&self.packet.key);
        self.observer.tell(Kind::Detail, || why(kind));
        self.because(DropReason::PacketType);
        false
    }

    /// Puts a header before the packet; false ends the list.
    pub(super) fn encap(&mut self, e: &Encap) -> bool {
        let is = packet_type(&self.packet.key);
        match e {
            Encap::Ethernet => {
                let Some(kind) = is.ethertype() else {
                    return self.unsupported(|_| {
                        "Dropping packet as encap(ethernet) is not supported for packet type ethernet.".into()
                    });
                };
                if !self.commit() {
                    return false;
                }
                self.observer.side_effect();
                let key = &mut self.packet.key;
                [F::EthSrc, F::EthDst, F::PacketType].into_iter().for_each(|f| key.set(f, 0));
                key.set(F::EthType, kind.into());
                self.observer.datapath(|| pushed_eth(&FlowKey::new()));
                true
            }
            Encap::Mpls(kind) => self.encap_mpls(*kind, is),
            Encap::Nsh(properties) => self.encap_nsh(properties, is),
        }
    }

    fn encap_mpls(&mut self, kind: u16, is: PacketType) -> bool {
        let labelled = is != PacketType::ETHERNET && is.ethertype().is_some_and(is_mpls);
        if labelled && label_count(&self.packet.key) >= LABELS {
            return self.too_many_labels("encap");
        }
        let entry = match labelled {
            true => self.packet.key.get(F::MplsLse) & !extract::BOTTOM_OF_STACK,
            false => first_entry(&self.packet.key),
        };
        self.put_before(is, kind, &(entry as u32).to_be_bytes());
        self.observer.datapath(|| added_label(entry, kind));
        true
    }

    fn encap_nsh(&mut self, properties: &[NshProperty], is: PacketType) -> bool {
        let behind = match is {
            PacketType::ETHERNET => next::ETHERNET,
            PacketType::IPV4 => next::IPV4,
            PacketType::IPV6 => next::IPV6,
            PacketType::NSH => next::NSH,
            _ => {
                return self.unsupported(|t| {
                    let (ns, kind) = (t.namespace(), t.kind());
                    format!("Dropping packet as encap(nsh) is not supported for packet type ({ns},{kind:#x})")
                });
            }
        };
        let (mut md_type, mut metadata) = (1, Vec::new());
        for p in properties {
            match p {
                NshProperty::MdType(n) => md_type = *n,
                NshProperty::Tlv { class, kind, value } => {
                    metadata.extend(class.to_be_bytes());
                    metadata.extend([*kind, value.len() as u8]);
                    metadata.extend(value);
                    metadata.resize(metadata.len().next_multiple_of(4), 0);
                }
            }
        }
        // As in Open vSwitch, too much of it is left out.
        if metadata.len() > nsh::LONGEST - nsh::BASE {
            metadata.clear();
        }
        let n = Nsh { ttl: NSH_TTL, md_type, next: behind, index: NSH_INDEX, ..Nsh::default() };
        let Some(header) = n.with(&metadata) else { return self.unsupported(|_| "a header that is too long".into()) };
        self.put_before(is, ETH_NSH, &header);
        let key = &self.packet.key;
        self.observer.datapath(|| pushed_nsh(key, &metadata));
        true
    }

    /// Puts a header before all that the packet is, which is of a type without Ethernet then.
    fn put_before(&mut self, is: PacketType, kind: u16, header: &[u8]) {
        self.changes_headers(|x| {
            x.packet.buf.settle_checksum();
            let (p, kept) = (&mut x.packet.buf, if is == PacketType::ETHERNET { ETHERNET } else { 0 });
            if !p.grow_front(kept + header.len()) {
                return false;
            }
            write_front(p, &[&stand_in(kind)[..], header].concat());
            true
        });
        self.packet.key.set(F::PacketType, PacketType::of(kind).0.into());
        self.packet.checksums_hold = false;
    }

    /// Takes `n` bytes behind the stand-in away; what follows is of a type.
    fn take_away(&mut self, n: usize, becomes: PacketType) -> bool {
        let ethernet = becomes == PacketType::ETHERNET;
        let left = self.packet.buf.data().len().saturating_sub(ETHERNET + n);
        if ethernet && left < ETHERNET {
            return self.unsupported(|_| "Dropping packet as no whole Ethernet header is in it".into());
        }
        self.changes_headers(|x| {
            let p = &mut x.packet.buf;
            match becomes.ethertype() {
                None => p.shrink_front(ETHERNET + n),
                Some(kind) => {
                    p.shrink_front(n);
                    write_front(p, &stand_in(kind));
                }
            }
            true
        });
        self.packet.key.set(F::PacketType, becomes.0.into());
        self.packet.checksums_hold = false;
        true
    }

    /// Takes the outermost header away; false ends the list.
    pub(super) fn decap(&mut self, becomes: PacketType) -> bool {
        if !self.commit() {
            return false;
        }
        let is = packet_type(&self.packet.key);
        match is.ethertype() {
            None if is == PacketType::ETHERNET => self.decap_ethernet(),
            Some(ETH_NSH) => self.decap_nsh(),
            Some(kind) if is_mpls(kind) => self.decap_mpls(becomes),
            _ => self.unsupported(|t| {
                let (ns, kind) = (t.namespace(), t.kind());
                format!("Dropping packet as the decap() does not support packet type ({ns},{kind:#x})")
            }),
        }
    }

    fn decap_ethernet(&mut self) -> bool {
        if self.packet.key.get(F::VlanTci) & 0x1000 != 0 {
            return self.unsupported(|_| "Dropping packet, cannot decap Ethernet if VLAN is present.".into());
        }
        self.observer.side_effect();
        let key = &mut self.packet.key;
        let kind = key.get(F::EthType) as u16;
        key.set(F::EthSrc, 0);
        key.set(F::EthDst, 0);
        key.set(F::PacketType, PacketType::of(kind).0.into());
        // The addresses are what the stand-in has; a trace tells of no change.
        self.packet.write_back();
        self.observer.datapath(|| "pop_eth".into());
        true
    }

    fn decap_nsh(&mut self) -> bool {
        let header = Nsh::parse(self.packet.buf.data().get(ETHERNET..).unwrap_or_default());
        let Some(header) = header else {
            return self.unsupported(|_| "Dropping packet as its NSH header is malformed".into());
        };
        let becomes = match header.next {
            next::ETHERNET => PacketType::ETHERNET,
            next::IPV4 => PacketType::IPV4,
            next::IPV6 => PacketType::IPV6,
            next::NSH => PacketType::NSH,
            n => return self.unsupported(|_| format!("Dropping packet as NSH next protocol {n} is not supported")),
        };
        let done = self.take_away(header.len, becomes);
        self.observer.datapath(|| "pop_nsh()".into());
        done
    }

    fn decap_mpls(&mut self, becomes: PacketType) -> bool {
        let (n, last) = (label_count(&self.packet.key), self.packet.key.get(F::MplsLse2));
        if n == LABELS && last & extract::BOTTOM_OF_STACK == 0 {
            return self.too_many_labels("decap");
        }
        if becomes != PacketType::ETHERNET && becomes.ethertype().is_none()
            || self.packet.buf.data().len() < ETHERNET + 4
        {
            return self.unsupported(|_| {
                let (ns, kind) = (becomes.namespace(), becomes.kind());
                format!("Dropping packet as packet type ({ns},{kind:#x}) is not what is behind a label")
            });
        }
        let done = self.take_away(4, becomes);
        // Ethernet in MPLS has the EtherType of transparent bridging there.
        let kind = becomes.ethertype().unwrap_or(0x6558);
        self.observer.datapath(|| format!("pop_mpls(eth_type={kind:#x})"));
        done
    }

    /// `dec_nsh_ttl`; false ends the list.
    pub(super) fn dec_nsh_ttl(&mut self) -> bool {
        if self.packet.key.get(F::EthType) == ETH_NSH.into() {
            if let ttl @ 2.. = self.packet.key.get(F::NshTtl) {
                self.packet.key.set(F::NshTtl, ttl - 1);
                return true;
            }
            self.controller(&ControllerAction { reason: PacketInReason::InvalidTtl, ..Default::default() });
            self.because(DropReason::TtlExceeded);
        }
        self.observer.tell(Kind::Warning, || "NSH decrement TTL exception".into());
        false
    }
}

/// `push_eth(…)` in the words of ovs-dpctl(8).
pub(crate) fn pushed_eth(key: &FlowKey) -> String {
    let [src, dst] = [F::EthSrc, F::EthDst].map(|f| extract::mac_text(key.get(f)));
    format!("push_eth(src={src},dst={dst})")
}

/// `add_mpls(…)` in these words.
pub(crate) fn added_label(entry: u128, kind: u16) -> String {
    format!("add_mpls({},eth_type={kind:#x})", super::mpls::entry_text(entry))
}

/// `push_nsh(…)` in these words.
pub(crate) fn pushed_nsh(key: &FlowKey, metadata: &[u8]) -> String {
    let md2: String = metadata.iter().map(|b| format!("{b:02x}")).collect();
    let md2 = if md2.is_empty() { md2 } else { format!(",md2=0x{md2}") };
    format!("push_nsh({}{})", nsh_text(key), if key.get(F::NshMdtype) == 1 { String::new() } else { md2 })
}

/// A header in these words, without metadata of other types than 1.
pub(crate) fn nsh_text(key: &FlowKey) -> String {
    let [flags, ttl, md_type, np, si] = [F::NshFlags, F::NshTtl, F::NshMdtype, F::NshNp, F::NshSi].map(|f| key.get(f));
    let spi = key.get(F::NshSpi);
    let mut s = format!("flags={flags},ttl={ttl},mdtype={md_type},np={np},spi={spi:#x},si={si}");
    if md_type == 1 {
        for (i, f) in CONTEXT.into_iter().enumerate() {
            s.push_str(&format!(",c{}={:#x}", i + 1, key.get(f)));
        }
    }
    s
}
